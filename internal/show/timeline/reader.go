package timeline

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// maxLine bounds a line of a saved trace. The largest is a start that lists every probe.
const maxLine = 64 << 20

// ErrCut is returned by Reader.Next if a trace has no end: its writer was
// killed, or the file is incomplete.
var ErrCut = errors.New("the trace has no end: it was cut off")

// lineError is an error in a line of a saved trace.
type lineError struct {
	Line uint64 // from 1 on
	Err  error
}

// Error returns the line's number and the error.
func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns the error without the line.
func (e *lineError) Unwrap() error { return e.Err }

// Reader reads a trace in the format of 'guestprobe trace --format json'. It
// belongs to one goroutine, and holds one line at a time, of at most 64 MiB.
type Reader struct {
	lines *bufio.Reader
	long  []byte // a line that is longer than the reader's buffer
	line  uint64 // number of the last line
	ended bool
	hits  uint64

	// Half reports that the last line was incomplete and was left out: its writer
	// was interrupted.
	Half bool

	// Missing is known after the end: how many events the daemon has delivered
	// that are not in the file, because lines were removed. A negative number
	// means that lines were added.
	Missing int64
}

// NewReader returns a reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{lines: bufio.NewReaderSize(r, 64<<10)} }

// Next returns the next record, whose Data is valid until the next call. The first one is a start. After the end it
// returns io.EOF, or ErrCut if the end is missing. A line that is not a trace's
// is a *lineError.
func (r *Reader) Next() (*Record, error) {
	if r.line == 0 {
		if form := r.form(); form != "" {
			return nil, fmt.Errorf("a trace in the form %q, which has not all that was recorded and is not read back: save it with 'guestprobe trace --format json', of which 'convert' makes this form", form)
		}
	}
	line, err := r.next()
	switch {
	case errors.Is(err, io.EOF) && r.line == 0:
		if r.Half {
			return nil, &lineError{1, errors.New("not a saved trace: it is no whole line of JSON")}
		}
		return nil, errors.New("not a saved trace: the file is empty")
	case errors.Is(err, io.EOF) && r.ended && !r.Half:
		return nil, io.EOF
	case errors.Is(err, io.EOF) && !r.ended:
		return nil, ErrCut
	case err == nil || errors.Is(err, io.EOF):
	default:
		return nil, err
	}
	bad := func(err error) (*Record, error) { return nil, &lineError{max(r.line, 1), err} }
	if r.ended {
		return bad(errors.New("after the end of the trace: a file has one trace"))
	}
	var raw api.Record
	if data, ok := api.HitData(line); ok {
		raw = api.Record{Type: api.RecordHit, Data: data}
	} else if raw, err = api.ReadRecord(line); err != nil {
		return bad(fmt.Errorf("not a record as 'guestprobe trace --format json' writes them: %s", api.DecodeText(err)))
	}
	switch {
	case raw.Type == "":
		return bad(errors.New("not a record as 'guestprobe trace --format json' writes them: it has no type"))
	case (raw.Type == api.RecordStart) != (r.line == 1):
		return bad(fmt.Errorf("a record of type %q: the first one is a start, and no other", raw.Type))
	}
	out, err := Parse(raw)
	if err == nil {
		err = out.check()
	}
	if err != nil {
		return bad(err)
	}
	switch {
	case out.Hit != nil:
		r.hits++
	case out.End != nil:
		r.ended = true
		r.Missing = int64(out.End.Delivered - out.End.Unshown - r.hits)
	}
	return out, nil
}

// begins are the beginnings of traces in other formats, of guestprobe's and of
// other programs.
var begins = []struct{ form, bytes string }{
	{Ftrace, "\x17\x08\x44tracing"}, {Chrome, "[\n{"}, {Chrome, `{"traceEvents"`},
}

// form returns the format of a trace for other programs, or "" for text that may
// be a trace's lines.
func (r *Reader) form() string {
	for _, b := range begins {
		if have, _ := r.lines.Peek(len(b.bytes)); string(have) == b.bytes {
			return b.form
		}
	}
	// The tag of a packet, and its length, which an empty line of text would have to be followed by.
	if have, _ := r.lines.Peek(2); len(have) == 2 && have[0] == '\n' && have[1] != '\n' && have[1] != '{' {
		return Perfetto
	}
	return ""
}

// next returns the next complete line, valid until the next call.
func (r *Reader) next() ([]byte, error) {
	r.long = r.long[:0]
	for {
		part, err := r.lines.ReadSlice('\n')
		if len(r.long)+len(part) > maxLine {
			return nil, &lineError{r.line + 1, fmt.Errorf("longer than %d bytes", maxLine)}
		}
		switch {
		case err == nil:
			r.line++
			if len(r.long) == 0 {
				return part, nil
			}
			r.long = append(r.long, part...)
			return r.long, nil
		case errors.Is(err, io.EOF):
			if r.long = append(r.long, part...); json.Valid(r.long) { // whole, without its newline
				r.line++
				return r.long, nil
			}
			r.Half = len(r.long) > 0
			return nil, io.EOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
		r.long = append(r.long, part...)
	}
}
