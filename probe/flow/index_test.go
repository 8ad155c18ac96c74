package flow

import (
	"slices"
	"testing"
)

func TestIndex(t *testing.T) {
	x := NewIndex([]uint64{30, 10, 20, 10, ^uint64(0)})
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

// TestAppendTargets: branches that stay in the function are Analyze's business.
func TestAppendTargets(t *testing.T) {
	// jmp -2; call +0x100; jcc to the end; jcc to the last byte; ret; undecodable; jmp.
	b := code(t, "eb fc e8 00 01 00 00 74 05 74 02 c3 90 90 06 e9 00 00 00 00")
	b = b[:14]
	want := []uint64{base - 2, base + 0x107, base + 14}
	if got := AppendTargets(nil, base, b); !slices.Equal(got, want) {
		t.Errorf("got %#x, want %#x", got, want)
	}
	if got := AppendTargets(make([]uint64, MaxTargets), base, b); len(got) != MaxTargets {
		t.Errorf("a full index grew to %d", len(got))
	}
}

// TestOtherFunctions: a jump out of a function's cold part into a region.
func TestOtherFunctions(t *testing.T) {
	hot := code(t, "90 90 90 90 90 90 90 90 c3")
	for to, want := range map[uint64]string{base: "ok 5 @1 2 3 4", base + 1: "jump_into_region", base + 4: "jump_into_region", base + 5: "ok 5 @1 2 3 4"} {
		rel := uint32(to - (base + 0x1000 + 5))
		cold := []byte{0xe9, byte(rel), byte(rel >> 8), byte(rel >> 16), byte(rel >> 24)}
		x := NewIndex(AppendTargets(nil, base+0x1000, cold))
		f := Analyze(Input{Addr: base, Code: hot, Targets: x.Targets})
		if got := verdict(f, 0, Ours); got != want {
			t.Errorf("jump to +%d: got %q, want %q", to-base, got, want)
		}
		// Linux does not look at other functions.
		if got := verdict(f, 0, Kernel); got != "ok 5 @1 2 3 4" {
			t.Errorf("jump to +%d by the kernel's rules: got %q", to-base, got)
		}
	}
}
