package fleet

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// FuzzPublished: whatever a peer has published, said of itself or defined is refused, or has names, texts and counts within bounds.
func FuzzPublished(f *testing.F) {
	head := `{"version":1,"name":"a","id":"DEFDEFDEF1","daemon":"vm1","run":"RUNRUNRUN1","seq":1,"from":1,"to":3,"every":60}` + "\n"
	var h Head
	if err := json.Unmarshal([]byte(head), &h); err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{
		nil, []byte(head + "{}\n"), message(h, []byte("{}\n"), true), {0x1f, 0x8b, 8, 0}, []byte(strings.Replace(head, "vm1", `vm1\nvm2\u001b[2J`, 1)), []byte(strings.Replace(head, `"to":3`, `"to":18446744073709551615`, 1)),
		[]byte(`{"name":"guestprobe","id":"ABCDEFGH","version":"1.0.0","metadata":{"name":"x","a b":"c"},"endpoints":[{"name":"connect","data":{"unkept":{"error":"a\nb","waiting":-1}}}]}`),
		[]byte(`{"definitions":[{"name":"a\nb","id":"DEFDEFDEF1","where":"x\ny","by":"\u001b"},{"id":"*"}]}`), []byte(`{"to":"guestprobe.*","error":"a\nb"}`),
	} {
		f.Add(seed)
	}
	line := func(t *testing.T, what, s string) {
		if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x9b }) {
			t.Errorf("%s of several lines: %q", what, s)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, records, err := unpack(bytes.Clone(b)); err == nil {
			if h.To < h.From || h.To > maxCount || h.Left < 0 || h.Every < 0 || h.Daemon == "" || len(records) > maxMaps {
				t.Errorf("%+v", h)
			}
			line(t, "a daemon's name", h.Daemon)
			line(t, "a script's name", h.Name)
			line(t, "an end", h.End)
		}
		if d, ok := daemonOf(b); ok {
			line(t, "a name", d.Name)
			line(t, "labels", d.Labels.String())
			if d.State != nil && d.State.Unkept != nil {
				line(t, "an error", d.State.Unkept.Error)
				if d.State.Unkept.Waiting < 0 {
					t.Error("less than nothing waits")
				}
			}
		}
		if x, err := readIndex(b, 1); err == nil {
			if len(x.Definitions) > maxDefinitions {
				t.Error("more definitions than there may be")
			}
			for _, d := range x.Definitions {
				line(t, "a definition", d.Name+d.Where+d.By)
				_, _ = ParseWhere(d.Where)
			}
		}
	})
}
