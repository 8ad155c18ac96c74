package timeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
)

// FuzzConvert: a file is refused, or it becomes whole timelines, whatever it has.
func FuzzConvert(f *testing.F) {
	trace, err := os.ReadFile("testdata/trace.ndjson")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(trace)
	f.Add(trace[:len(trace)-100])
	first := bytes.IndexByte(trace, '\n') + 1
	for line := range bytes.Lines(trace[first:]) {
		f.Add(append(bytes.Clone(trace[:first]), line...))
	}
	f.Fuzz(func(t *testing.T, trace []byte) {
		var out [3]bytes.Buffer
		var to []Writer
		for i, form := range Formats {
			to = append(to, writerOf(t, form, &out[i]))
		}
		to = append(to, writerOf(t, "table", io.Discard), writerOf(t, "json", io.Discard))
		in := NewReader(bytes.NewReader(trace))
		hits := 0
		for {
			r, err := in.Next()
			if err != nil {
				if e := (*lineError)(nil); errors.As(err, &e) && e.Line > uint64(bytes.Count(trace, []byte("\n"))+1) {
					t.Errorf("an error in line %d", e.Line)
				}
				break
			}
			if r.Hit != nil {
				hits++
			}
			for _, w := range to {
				if err := w.Write(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, w := range to {
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		readPerfetto(t, out[0].Bytes())
		var events []struct {
			Ph, Cat string
			PID     int
		}
		if err := json.Unmarshal(out[2].Bytes(), &events); err != nil {
			t.Fatalf("%v:\n%s", err, out[2].Bytes())
		}
		if n := out[1].Len(); n%pageSize != 0 {
			t.Errorf("a trace.dat of %d bytes", n)
		}
	})
}
