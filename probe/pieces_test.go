package probe_test

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// pieced is a kernel with modules, which counts the bytes of code that it is asked for.
type pieced struct {
	*probetest.Kernel
	pieces []guest.Piece
	read   map[guest.GVA]int // of the second range, by the beginning of the piece
}

func (p *pieced) Pieces() []guest.Piece { return p.pieces }

func (p *pieced) Code(addr guest.GVA, n int) []byte {
	b := p.Kernel.Code(addr, n)
	for _, x := range p.pieces {
		if rest := x.Text[1]; addr >= rest.Start && addr < rest.End {
			p.read[x.Text[0].Start] += len(b)
		}
	}
	return b
}

// TestPieces: when a module comes only that is looked at, and what it says of the kernel's
// text counts; when it goes nothing is.
func TestPieces(t *testing.T) {
	img, err := probetest.BuildImage(textBase, false,
		hexFunc(t, "core", "90 90 90 90 90 90 90 90 c3"),
		hexFunc(t, "one", "eb f6 90 90 c3"), // jmp core+1
		hexFunc(t, "two", "eb f3 c3"),       // jmp core+3
		hexFunc(t, "core_rest", strings.Repeat("90", 2000)), hexFunc(t, "one_rest", strings.Repeat("90", 2000)), hexFunc(t, "two_rest", strings.Repeat("90", 2000)),
		hexFunc(t, "end", "c3"),
	)
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) guest.GVA {
		s, err := img.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		return s.Addr
	}
	piece := func(id any, name, next string) guest.Piece {
		rest := at(name + "_rest")
		return guest.Piece{ID: id, Text: []guest.Range{{Start: at(name), End: at(next)}, {Start: rest, End: rest + 2000}}}
	}
	k := &pieced{Kernel: &probetest.Kernel{Image: img}}
	core, one, two := piece(0, "core", "one"), piece("one", "one", "two"), piece("two", "two", "core_rest")
	fs := probe.NewFunctions(k)
	sym, err := img.Lookup("core")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what   string
		pieces []guest.Piece
		leads  [4]bool // a branch of another function to core+n
		read   [3]bool // all of core, one and two
	}{
		{"the kernel", []guest.Piece{core}, [4]bool{}, [3]bool{true}},
		{"one comes", []guest.Piece{core, one}, [4]bool{1: true}, [3]bool{1: true}},
		{"two comes", []guest.Piece{core, one, two}, [4]bool{1: true, 3: true}, [3]bool{2: true}},
		{"one goes", []guest.Piece{core, two}, [4]bool{3: true}, [3]bool{}},
		{"one is another", []guest.Piece{core, piece("other", "one", "two"), two}, [4]bool{1: true, 3: true}, [3]bool{1: true}},
		{"the kernel has patched itself", []guest.Piece{piece(1, "core", "one"), two}, [4]bool{3: true}, [3]bool{true}},
	} {
		k.pieces, k.read = c.pieces, map[guest.GVA]int{}
		for range 2 { // the second time it is known
			f, why := fs.Analyze(sym)
			if f == nil {
				t.Fatal(why)
			}
			for n, want := range c.leads {
				if got := f.Branched(n); got != want {
					t.Errorf("%s: a branch leads to core+%d: %v", c.what, n, got)
				}
			}
		}
		for n, x := range []guest.Piece{core, one, two} {
			if got := k.read[x.Text[0].Start]; got >= 2000 != c.read[n] || got >= 4000 { // a little of what is close to a place that was asked for
				t.Errorf("%s: %d bytes of piece %d were read", c.what, got, n)
			}
		}
	}
}
