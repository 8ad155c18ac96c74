package http

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// maxTextRanges bounds the list of differences; the hashes cover everything.
const maxTextRanges = 10_000

func (in *inspector) getText(w http.ResponseWriter, r *http.Request) error {
	t, err := compareText(in.guest)
	if err != nil {
		return fmt.Errorf("compare text: %w", err)
	}
	writeJSON(w, http.StatusOK, t)
	return nil
}

// expecting is an image whose guest patches itself, so that its text differs
// from the image's bytes (linux.View).
type expecting interface {
	// ExpectedText returns the bytes that the text in r should have, and the
	// places of the guest's own kprobes. own is the text in memory without our
	// probes and without those kprobes.
	ExpectedText(r guest.Range, own []byte) (want []byte, kprobes []guest.Range, err error)
}

// compareText compares all executable bytes of the image, the kernel's and the
// programs' at CPL3, with guest memory. All vCPUs are stopped during that time,
// so each patch is seen either complete or not at all. The guest's own kprobes
// are listed, and do not count as differences.
func compareText(g Guest) (api.Text, error) {
	var t api.Text
	err := g.Stop(func(probe.World) error {
		img := g.Image()
		live, want := sha256.New(), sha256.New()
		t = api.Text{Identical: true, Ranges: []api.TextRange{}}
		for _, user := range []bool{false, true} {
			for _, rg := range img.Text(user) {
				d := textDiff{e: g.Engine(), img: img, at: rg.Start, want: img.Code(rg.Start, int(rg.End-rg.Start))}
				if x, ok := img.(expecting); ok && !user {
					// If its table of kprobes cannot be read, they count as other
					// differences.
					d.want, d.kprobes, _ = x.ExpectedText(rg, d.want)
				}
				d.live = make([]byte, len(d.want))
				if err := g.ReadText(rg.Start, d.live); err != nil {
					return err
				}
				live.Write(d.live)
				t.Bytes += uint64(len(d.want))
				t.Ranges = append(t.Ranges, d.ranges(maxTextRanges-len(t.Ranges))...)
				want.Write(d.want)
			}
		}
		t.Live, t.Image = hex.EncodeToString(live.Sum(nil)), hex.EncodeToString(want.Sum(nil))
		t.Identical = t.Live == t.Image
		return nil
	})
	return t, err
}

// textDiff is a range of text with the expected and the actual bytes.
type textDiff struct {
	e          *probe.Engine
	img        guest.View
	at         guest.GVA
	want, live []byte
	kprobes    []guest.Range
}

// ranges returns the runs of bytes that differ, each with one owner, at most
// limit of them. Bytes that the guest itself has changed are copied into want,
// so that they no longer differ.
func (d *textDiff) ranges(limit int) (out []api.TextRange) {
	for i := 0; i < len(d.want); i++ {
		if d.want[i] == d.live[i] {
			continue
		}
		from, by := i, d.ownerAt(i)
		for i < len(d.want) && d.want[i] != d.live[i] && d.ownerAt(i) == by {
			i++
		}
		if len(out) < limit {
			r := api.TextRange{Addr: api.Hex(d.at + guest.GVA(from)), By: by, Image: hex.EncodeToString(d.want[from:i]), Live: hex.EncodeToString(d.live[from:i])}
			if sym, ok := d.img.Find(guest.GVA(r.Addr)); ok {
				r.Symbol = fmt.Sprintf("%s+%#x", sym.Name, uint64(r.Addr)-uint64(sym.Addr))
			}
			out = append(out, r)
		}
		if by == api.TextGuest {
			copy(d.want[from:i], d.live[from:i])
		}
		i--
	}
	return out
}

// ownerAt returns the owner of the differing byte at i.
func (d *textDiff) ownerAt(i int) string {
	at := d.at + guest.GVA(i)
	rest := []byte{d.live[i]}
	if d.e.Unpatch(at, rest); rest[0] != d.live[i] {
		return api.TextProbe
	}
	for _, k := range d.kprobes {
		if at >= k.Start && at < k.End {
			return api.TextGuest
		}
	}
	return api.TextOther
}
