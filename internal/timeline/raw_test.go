package timeline

import (
	"bytes"
	"testing"

	"github.com/guestprobe/guestprobe/internal/api"
)

// TestRawBytes: a trace.dat has the bytes of a string, also where they are no text.
func TestRawBytes(t *testing.T) {
	var out bytes.Buffer
	w := writerOf(t, Ftrace, &out)
	for _, r := range []*Record{
		Of(api.Start{}),
		Of(api.Hit{Probe: "kprobes/a", Stage: "pre", Text: `(f) s="x\xffy"`, Args: []api.Arg{{Name: "s", Type: "string", Value: "x\ufffdy", Text: `"x\xffy"`, Raw: [][]byte{[]byte("x\xffy")}}}}),
		Of(api.End{}),
	} {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(out.Bytes(), []byte("x\xffy\x00")) {
		t.Error("the bytes are not there")
	}
}
