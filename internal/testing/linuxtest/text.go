package linuxtest

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// Text returns the bytes that the guest's memory has as its kernel's text, probes and
// all, while it rests.
func (g *Guest) Text() map[guest.GVA][]byte {
	g.t.Helper()
	if err := g.Pause(); err != nil {
		g.t.Fatal(err)
	}
	text := make(map[guest.GVA][]byte)
	for _, r := range g.Image().Text(false) {
		b := make([]byte, r.End-r.Start)
		if err := g.Peek(r.Start, b); err != nil {
			g.t.Fatalf("text at %v: %v", r.Start, err)
		}
		text[r.Start] = b
	}
	if err := g.Resume(); err != nil {
		g.t.Fatal(err)
	}
	return text
}

// checkSameText fails the test for each function whose bytes are others than before.
func (g *Guest) checkSameText(got, want map[guest.GVA][]byte) {
	g.t.Helper()
	const shown = 20
	n := 0
	for start, b := range want {
		for i := range b {
			if i < len(got[start]) && got[start][i] == b[i] {
				continue
			}
			if n++; n <= shown {
				at := start + guest.GVA(i)
				where := fmt.Sprintf("%#x", at)
				if s, ok := g.Image().Find(at); ok {
					where = fmt.Sprintf("%s+%#x", s.Name, at-s.Addr)
				}
				g.t.Errorf("the text at %s is not what it was: %#x, then %#x", where, b[i], got[start][i:min(i+1, len(got[start]))])
			}
		}
	}
	if n > shown {
		g.t.Errorf("and %d bytes more", n-shown)
	}
}
