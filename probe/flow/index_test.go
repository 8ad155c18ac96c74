package flow

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// anywhere is an image that is all text.
func anywhere(uint64) bool { return true }

func TestIndex(t *testing.T) {
	x := knownIndex(false, 30, 10, 20, 10, ^uint64(0))()
	for _, tt := range []struct {
		lo, hi uint64
		want   []uint64
	}{
		{0, 10, nil}, {0, 11, []uint64{10}}, {10, 11, []uint64{10}}, {11, 20, nil}, {10, 31, []uint64{10, 20, 30}},
		{31, ^uint64(0), nil}, {5, 5, nil}, {20, 10, nil},
	} {
		if got := x.Targets(tt.lo, tt.hi); !slices.Equal(got, tt.want) {
			t.Errorf("[%d,%d): got %d, want %d", tt.lo, tt.hi, got, tt.want)
		}
	}
	if x.Len() != 4 || !x.Complete() {
		t.Errorf("%d targets, complete %v; want 4, true", x.Len(), x.Complete())
	}
}

// TestBuilder: branches within the function are left to Analyze, and those of bytes
// that no path reaches are known, but start no path.
func TestBuilder(t *testing.T) {
	// jmp +2; call +0x100 (not reached); call +0x107; jcc to the end; ret; jmp.
	in := Input{Addr: base, Code: code(t, "eb 05 e8 00 01 00 00 e8 00 02 00 00 74 01 c3 06 e9 00 00 00 00")[:15]}
	b := NewBuilder(anywhere)
	b.Function(in)
	b.Gap(base+0x1000, code(t, "06 e9 fb ef ff ff"))
	x := b.Index()
	if got, want := x.targets, []uint64{base + 1, base + 15, base + 0x107, base + 0x20c}; !slices.Equal(got, want) {
		t.Errorf("targets %#x, want %#x", got, want)
	}
	if got, want := x.paths, []uint64{base + 15, base + 0x20c}; !slices.Equal(got, want) {
		t.Errorf("known paths lead to %#x, want %#x", got, want)
	}
	full := NewBuilder(anywhere)
	full.x.targets = make([]uint64, maxTargets)
	full.Function(in)
	if x := full.Index(); len(full.x.targets) > maxTargets || x.Complete() {
		t.Errorf("a full index holds %d targets, complete %v", len(full.x.targets), x.Complete())
	}
	f := Analyze(Input{Addr: base, Code: code(t, "90 90 90 90 90 90"), Known: full.buildKnown()})
	if got := verdict(f, 0, Ours); got != "jump_into_region" {
		t.Errorf("with a full index: %q", got)
	}
}

// TestOtherFunctions: a jump out of a function's cold part into a region, and a
// read of it.
func TestOtherFunctions(t *testing.T) {
	hot := code(t, "90 90 90 90 90 90 90 90 c3")
	for to, want := range map[uint64]string{base: "ok 5 @1 2 3 4", base + 1: "jump_into_region", base + 4: "jump_into_region", base + 5: "ok 5 @1 2 3 4"} {
		rel := uint32(to - (base + 0x1000 + 5))
		cold := []byte{0xe9, byte(rel), byte(rel >> 8), byte(rel >> 16), byte(rel >> 24)}
		b := NewBuilder(anywhere)
		b.Function(Input{Addr: base + 0x1000, Code: cold})
		f := Analyze(Input{Addr: base, Code: hot, Known: b.buildKnown()})
		if got := verdict(f, 0, Ours); got != want {
			t.Errorf("jump to +%d: got %q, want %q", to-base, got, want)
		}
		// Linux does not look at other functions.
		if got := verdict(f, 0, Kernel); got != "ok 5 @1 2 3 4" {
			t.Errorf("jump to +%d by the kernel's rules: got %q", to-base, got)
		}
		// mov (%rip), %eax of 4 bytes at to-3
		rel = uint32(to - 3 - (base + 0x1000 + 6))
		b = NewBuilder(anywhere)
		b.Function(Input{Addr: base + 0x1000, Code: []byte{0x8b, 0x05, byte(rel), byte(rel >> 8), byte(rel >> 16), byte(rel >> 24)}})
		if want != "ok 5 @1 2 3 4" || to == base+5 {
			want = "data"
		}
		f = Analyze(Input{Addr: base, Code: hot, Known: b.buildKnown()})
		if got := verdict(f, 0, Ours); got != want {
			t.Errorf("read up to +%d: got %q, want %q", to-base, got, want)
		}
	}
}

// TestJoin: what parts of an image say together is what the image says.
func TestJoin(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	whole, parts := NewBuilder(anywhere), []*Index(nil)
	for part := range 7 {
		b := NewBuilder(anywhere)
		for f := range 40 {
			in := Input{Addr: base + uint64(part)*0x1000 + uint64(f)*64, Code: make([]byte, 64), AllCode: part%2 == 0}
			for i := range in.Code {
				in.Code[i] = []byte{0x90, 0xe8, 0xe9, 0x74, 0xeb, 0x00, 0x01, 0x8b, 0x05, 0xc3}[random.IntN(10)]
			}
			b.Function(in)
			whole.Function(in)
		}
		parts = append(parts, b.Index())
		if part == 3 {
			parts = append(parts, NewBuilder(anywhere).Index()) // one that says nothing
		}
	}
	got, want := Join(parts), whole.Index()
	if !slices.Equal(got.targets, want.targets) || !slices.Equal(got.paths, want.paths) || len(want.paths) == len(want.targets) || len(got.targets) < 100 {
		t.Errorf("%d targets and %d paths, want %d and %d", len(got.targets), len(got.paths), len(want.targets), len(want.paths))
	}
	if len(got.refs) == 0 || len(got.refs) != len(want.refs) || !slices.IsSortedFunc(got.refs, compareRefs) || len(got.tables) != len(want.tables) || !got.Complete() {
		t.Errorf("%d references, want %d; complete %v", len(got.refs), len(want.refs), got.Complete())
	}
	if parts[1].full = true; Join(parts).Complete() || Join(parts[:1]) != parts[0] {
		t.Error("a part is not complete, and the whole is; or one part alone is another one")
	}
}
