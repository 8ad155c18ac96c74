package remote

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// ErrCutOff is returned by Stream.Next if the stream ended without an end record: the
// daemon has died.
var ErrCutOff = errors.New("stream was cut off")

// maxLine bounds one record. The largest is a start record that lists every probe;
// memory is allocated only when it arrives.
const maxLine = 256 << 20

// Stream is a sequence of records. It belongs to one goroutine, Close included: others end
// it with its context, or with EndStream. Read records as they come: the daemon drops events, and counts them as
// lost, rather than stop the guest for a slow reader.
type Stream struct {
	body  io.ReadCloser
	lines *bufio.Reader
	long  []byte // a line that is longer than the reader's buffer
	most  int    // limit of a line, in bytes
	all   *Room
	taken int64 // bytes taken of the shared room, for long
	ctx   context.Context
	ended bool
}

// Events opens an event stream, and attaches the probes in r, all or none. Its first
// record is api.RecordStart; hits that happen after Events has returned are in the stream or
// counted as lost. The probes are detached when the stream ends, except those with Stay.
// The stream's context is ctx.
func (c *Client) Events(ctx context.Context, r api.StreamEvents) (*Stream, error) {
	return c.stream(ctx, http.MethodPost, "/v1/events", nil, r)
}

// Profile opens the stream of a profile. EndStream ends the profile; its stacks come after
// that, as api.RecordStack, or as api.RecordGraph with r.Graph.
func (c *Client) Profile(ctx context.Context, r api.StreamProfile) (*Stream, error) {
	return c.stream(ctx, http.MethodPost, "/v1/profile", nil, r)
}

// Counts opens a stream of counts: an api.RecordCounts at once and then one every interval.
func (c *Client) Counts(ctx context.Context, r api.StreamCounts) (*Stream, error) {
	return c.stream(ctx, http.MethodPost, "/v1/counts", nil, r)
}

// EndStream asks the daemon to end an event stream, by its number in api.Start: its
// probes are detached, and it sends the remaining records and the end record.
func (c *Client) EndStream(ctx context.Context, stream uint64) error {
	return c.call(ctx, http.MethodDelete, "/v1/events/"+strconv.FormatUint(stream, 10), nil, nil, nil)
}

// Console opens the guest's console output from the oldest part that is kept; with
// follow it continues until the guest ends.
func (c *Client) Console(ctx context.Context, follow bool) (*Stream, error) {
	q := url.Values{}
	if follow {
		q.Set("follow", "true")
	}
	return c.stream(ctx, http.MethodGet, "/v1/guest/console", q, nil)
}

// ConsoleBytes opens the guest's console output until the guest ends: its earlier
// output as lines, and its further output unchanged, as api.RecordOutput.
func (c *Client) ConsoleBytes(ctx context.Context) (*Stream, error) {
	return c.stream(ctx, http.MethodGet, "/v1/guest/console", url.Values{"bytes": {"true"}}, nil)
}

// Type types at the guest's console, and waits until all of b is accepted.
func (c *Client) Type(ctx context.Context, b []byte) error {
	for len(b) > 0 {
		var r api.ConsoleTaken
		if err := c.call(ctx, http.MethodPost, "/v1/guest/console", nil, api.ConsoleInput{Bytes: b[:min(len(b), api.MaxInput)]}, &r); err != nil {
			return err
		}
		if r.Taken < 0 || r.Taken > len(b) {
			return fmt.Errorf("%w: %d of %d bytes taken", ErrProtocol, r.Taken, len(b))
		}
		b = b[r.Taken:]
	}
	return nil
}

func (c *Client) stream(ctx context.Context, method, path string, query url.Values, in any) (*Stream, error) {
	resp, err := c.do(ctx, method, path, query, in)
	if err != nil {
		return nil, err
	}
	return &Stream{body: resp.Body, lines: bufio.NewReaderSize(resp.Body, 64<<10), most: cmp.Or(c.bounds.Line, maxLine), all: c.bounds.All, ctx: ctx}, nil
}

// Next returns the next record, of any type. After the end record it returns io.EOF;
// a stream without one ends in ErrCutOff, or in the context's error if the caller
// ended it.
func (s *Stream) Next() (api.Record, error) {
	if s.ended {
		return api.Record{}, io.EOF
	}
	line, err := s.line()
	switch {
	case err == nil:
	case s.ctx.Err() != nil:
		return api.Record{}, context.Cause(s.ctx)
	case errors.Is(err, io.EOF):
		return api.Record{}, ErrCutOff
	default:
		return api.Record{}, fmt.Errorf("%w: %w", ErrCutOff, err)
	}
	r, err := api.ReadRecord(line)
	if err != nil {
		return r, fmt.Errorf("%w: record: %w", ErrProtocol, err)
	}
	s.ended = r.Type == api.RecordEnd
	return r, nil
}

// line returns the next whole line, valid until the next call. Data before an end
// without a newline is not a line: it was cut off.
func (s *Stream) line() ([]byte, error) {
	if s.long = s.long[:0]; s.taken > 0 { // do not keep one long line for all that follow
		s.long = nil
		s.all.give(s.taken)
		s.taken = 0
	}
	for {
		part, err := s.lines.ReadSlice('\n')
		switch {
		case err == nil && len(s.long) == 0:
			return part, nil
		case err == nil:
			return append(s.long, part...), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(s.long)+len(part) > s.most:
			return nil, fmt.Errorf("a record of more than %d bytes", s.most)
		case !s.all.take(int64(len(part))):
			s.all.give(int64(len(part)))
			return nil, errNoRoom
		}
		s.taken += int64(len(part))
		s.long = append(s.long, part...)
	}
}

// Close ends the stream at once: the daemon detaches the stream's probes, and records that
// were not read are lost. Call it also after the end record.
func (s *Stream) Close() error {
	s.all.give(s.taken)
	s.taken = 0
	return s.body.Close()
}
