package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/probe"
)

// maxTextRanges bounds the list of differences; the hashes cover everything.
const maxTextRanges = 10_000

func (s *server) getText(w http.ResponseWriter, r *http.Request) error {
	t, err := compareText(s.guest)
	if err != nil {
		return fmt.Errorf("compare text: %w", err)
	}
	writeJSON(w, http.StatusOK, t)
	return nil
}

// compareText compares all executable bytes of the image, the kernel's and
// those of CPL3, with guest memory. The world is stopped meanwhile: patches are
// seen whole or not at all.
func compareText(g Guest) (api.Text, error) {
	var t api.Text
	err := g.Stop(func(probe.World) error {
		img := g.Image()
		live, want := sha256.New(), sha256.New()
		t = api.Text{Identical: true, Ranges: []api.TextRange{}}
		for _, user := range []bool{false, true} {
			for _, rg := range img.Text(user) {
				a := img.Code(rg.Start, int(rg.End-rg.Start))
				b := make([]byte, len(a))
				if err := g.ReadText(rg.Start, b); err != nil {
					return err
				}
				want.Write(a)
				live.Write(b)
				t.Bytes += uint64(len(a))
				t.Ranges = append(t.Ranges, diffText(img, rg.Start, a, b, maxTextRanges-len(t.Ranges))...)
			}
		}
		t.Live, t.Image = hex.EncodeToString(live.Sum(nil)), hex.EncodeToString(want.Sum(nil))
		t.Identical = t.Live == t.Image
		return nil
	})
	return t, err
}

// diffText returns the runs of bytes in which want and live differ, at most
// limit of them.
func diffText(img guest.View, at guest.GVA, want, live []byte, limit int) []api.TextRange {
	var out []api.TextRange
	for i := 0; i < len(want) && len(out) < limit; i++ {
		if want[i] == live[i] {
			continue
		}
		from := i
		for i < len(want) && want[i] != live[i] {
			i++
		}
		r := api.TextRange{Addr: api.Hex(at + guest.GVA(from)), Image: hex.EncodeToString(want[from:i]), Live: hex.EncodeToString(live[from:i])}
		if sym, ok := img.Find(guest.GVA(r.Addr)); ok {
			r.Symbol = fmt.Sprintf("%s+%#x", sym.Name, uint64(r.Addr)-uint64(sym.Addr))
		}
		out = append(out, r)
	}
	return out
}
