package timeline

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/guestprobe/guestprobe/internal/api"
)

// NDJSON writes the records of the stream, one per line, each by one call of its writer.
type NDJSON struct{ w io.Writer }

// NewNDJSON returns a writer to w.
func NewNDJSON(w io.Writer) *NDJSON { return &NDJSON{w} }

// Write writes a line.
func (n *NDJSON) Write(r *Record) error {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(api.Record{Type: r.Type, Data: r.Data}); err != nil {
		return err
	}
	_, err := n.w.Write(line.Bytes())
	return err
}

// Close does nothing: each line is whole.
func (n *NDJSON) Close() error { return nil }
