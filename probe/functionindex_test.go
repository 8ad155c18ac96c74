package probe

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// lookups is Symbols, embedded under a name that no method has.
type lookups = Symbols

// indexKernel is a kernel of which only the text and the symbols are known.
type indexKernel struct {
	lookups
	Image
	Kernel
	ranges []guest.Range
	code   map[guest.GVA][]byte // by range
	syms   []guest.Symbol
}

func (k *indexKernel) Symbols() []guest.Symbol { return k.syms }

func (k *indexKernel) Text(user bool) []guest.Range {
	if user {
		return nil
	}
	return k.ranges
}

func (k *indexKernel) bytesAt(a guest.GVA) ([]byte, bool) {
	for _, r := range k.ranges {
		if a >= r.Start && a < r.End {
			return k.code[r.Start][a-r.Start:], true
		}
	}
	return nil, false
}

func (k *indexKernel) IsText(a guest.GVA) bool { _, ok := k.bytesAt(a); return ok }

func (k *indexKernel) Code(a guest.GVA, n int) []byte {
	b, _ := k.bytesAt(a)
	return slices.Clone(b[:min(n, len(b))])
}

// windowKernel is an indexKernel whose text is read through a buffer, which sometimes fails.
type windowKernel struct {
	*indexKernel
	fails int // every Nth time; 0: never
	reads int
}

func (k *windowKernel) ReadCode(a guest.GVA, p []byte) bool {
	k.reads++
	b, _ := k.bytesAt(a)
	if k.fails > 0 && k.reads%k.fails == 0 || len(b) < len(p) {
		return false
	}
	copy(p, b)
	return true
}

// TestKernelIndex: the index of a kernel's text contains the targets of all direct branches that leave their function, or their gap between
// functions, for another place in the text.
func TestKernelIndex(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	const window = 64 << 10 // the size of reads
	const base = guest.GVA(0xffffffff81000000)
	k := &indexKernel{code: map[guest.GVA][]byte{}}
	for _, r := range []guest.Range{{Start: base, End: base + 0x1003}, {Start: base + 0x2000, End: base + 0x6001}, {Start: base + 0x7000, End: base + 0x7800},
		{Start: base + 0x10000, End: base + 0x10000 + 5*window + 77}} {
		code := make([]byte, r.End-r.Start)
		for i := range code {
			code[i] = []byte{0x90, 0xe8, 0xe9, 0x74, 0xeb, 0x00, 0xff, 0x0f, 0x84, 0xc3, 0x48, 0x66}[random.IntN(12)]
		}
		k.ranges, k.code[r.Start] = append(k.ranges, r), code
		for a := r.Start + guest.GVA(random.IntN(40)); a < r.End; a += guest.GVA(1 + random.IntN(150)) {
			if len(k.ranges) == 4 && len(k.syms) > 1000 && k.syms[len(k.syms)-1].Size < window && random.IntN(500) == 0 { // no function may be as long
				k.syms = append(k.syms, guest.Symbol{Addr: a, Size: min(window+1000, uint64(r.End-a)), Kind: guest.SymFunc})
				a += window + 1000
				continue
			}
			s := guest.Symbol{Addr: a, Size: uint64(random.IntN(100)), Kind: guest.SymFunc}
			if s.Size = min(s.Size, uint64(r.End-a)); random.IntN(9) == 0 {
				s.Kind = guest.SymData
			}
			if k.syms = append(k.syms, s); random.IntN(9) == 0 {
				k.syms = append(k.syms, s) // a second name
			}
		}
	}
	want := map[uint64]bool{}
	straight := func(lo, hi guest.GVA) {
		code := k.Code(lo, int(hi-lo))
		for at := 0; at < len(code); {
			i, err := x86.Decode(code[at:])
			if err != nil {
				at++
				continue
			}
			if to, ok := i.Target(uint64(lo) + uint64(at)); ok && (to < uint64(lo) || to >= uint64(hi)) && k.IsText(guest.GVA(to)) {
				want[to] = true
			}
			at += int(i.Len)
		}
	}
	for _, r := range k.ranges {
		at := r.Start
		for _, s := range k.syms {
			if s.Kind != guest.SymFunc || s.Size == 0 || s.Addr < r.Start || s.Addr >= r.End {
				continue
			}
			if at < s.Addr {
				straight(at, s.Addr)
			}
			straight(s.Addr, s.Addr+guest.GVA(s.Size))
			at = max(at, s.Addr+guest.GVA(s.Size))
		}
		if at < r.End {
			straight(at, r.End)
		}
	}
	all := slices.Sorted(maps.Keys(want))
	for name, syms := range map[string]Symbols{"whole": k, "through a window": &windowKernel{indexKernel: k}, "not at once": &windowKernel{indexKernel: k, fails: 2}} {
		index := (&Functions{syms: syms}).indexText(guest.Piece{Text: k.ranges})
		if w, ok := syms.(*windowKernel); ok && w.fails == 0 && w.reads > 20 {
			t.Errorf("%d reads of %d ranges", w.reads, len(k.ranges))
		}
		if got := index.Targets(0, ^uint64(0)); !slices.Equal(got, all) || len(all) < 300 {
			t.Errorf("%s: %d targets, want %d", name, len(got), len(all))
		}
		for range 5_000 {
			r := k.ranges[random.IntN(len(k.ranges))]
			lo := uint64(r.Start) - 200 + random.Uint64N(uint64(r.End-r.Start)+400)
			hi := lo + random.Uint64N([]uint64{2, 20, 400, 5000}[random.IntN(4)])
			first, _ := slices.BinarySearch(all, lo)
			end, _ := slices.BinarySearch(all, hi)
			if got, want := index.Targets(lo, hi), all[first:end]; !slices.Equal(got, want) {
				t.Fatalf("%s: in [%#x, %#x) %#x, want %#x", name, lo, hi, got, want)
			}
		}
	}
}
