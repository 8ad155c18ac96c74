package timeline

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// NDJSON writes the records of the stream, one per line, each by one call of its writer.
type NDJSON struct {
	w    io.Writer
	line bytes.Buffer
}

// NewNDJSON returns a writer to w.
func NewNDJSON(w io.Writer) *NDJSON { return &NDJSON{w: w} }

// Write writes a line.
func (n *NDJSON) Write(r *Record) error {
	n.line.Reset()
	if r.Hit != nil { // its data was read: it is JSON
		n.line.WriteString(api.HitPrefix)
		n.line.Write(r.Data)
		n.line.WriteString("}\n")
	} else {
		enc := json.NewEncoder(&n.line)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(api.Record{Type: r.Type, Data: r.Data}); err != nil {
			return err
		}
	}
	_, err := n.w.Write(n.line.Bytes())
	return err
}

// Close does nothing: each line is complete.
func (n *NDJSON) Close() error { return nil }
