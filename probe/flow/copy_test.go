package flow

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

func TestAppendCopy(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		addr, to   uint64
		want       string
		starts     []int
		err        error
	}{
		{"nothing to change", "55 48 89 e5 53", base, base + 0x1000, "55 48 89 e5 53", []int{0, 1, 4}, nil},
		{"relative operand", "48 8d 05 00 00 00 00", base, base + 0x1000, "48 8d 05 00 f0 ff ff", []int{0}, nil},
		{"short jcc, then jmp", "74 10 e9 00 01 00 00", base, base + 0x1000,
			"0f 84 0c f0 ff ff e9 fc f0 ff ff", []int{0, 6}, nil},
		{"call at a kernel address", "e8 00 01 00 00", base, base + 0x1000, "68 05 00 00 81 e9 fb f0 ff ff", []int{0}, nil},
		{"call at a low address", "e8 00 01 00 00", 0x40_0000, 0x40_1000, "68 05 00 40 00 e9 fb f0 ff ff", []int{0}, nil},
		{"call at another address", "90 e8 00 01 00 00", 0x5555_8000_0000, 0x5555_8000_1000,
			"90 68 06 00 00 80 c7 44 24 04 55 55 00 00 e9 f3 f0 ff ff", []int{0, 1}, nil},
		{"call, return address just positive", "e8 00 00 00 00", 0x7fff_fffa, 0x7fff_ffe0, "68 ff ff ff 7f e9 15 00 00 00", []int{0}, nil},
		{"call, return address just not", "e8 00 00 00 00", 0x7fff_fffb, 0x7fff_ffe0, "68 00 00 00 80 c7 44 24 04 00 00 00 00 e9 0e 00 00 00", []int{0}, nil},
		{"operand out of reach", "48 8d 05 00 00 00 00", base, base - 0x9000_0000, "", nil, x86.ErrOutOfReach},
		{"callee out of reach", "e8 00 00 00 00", base, base - 0x9000_0000, "", nil, x86.ErrOutOfReach},
	} {
		f := Analyze(Input{Addr: tt.addr, Code: code(t, tt.code)})
		reg, no := f.Region(0, OursCalls)
		if no != nil {
			t.Errorf("%s: %v", tt.name, no)
			continue
		}
		got, starts, err := reg.AppendCopy([]byte{0xaa}, tt.to)
		if !errors.Is(err, tt.err) || err != nil && tt.err == nil {
			t.Errorf("%s: error %v, want %v", tt.name, err, tt.err)
		}
		if want := append([]byte{0xaa}, code(t, tt.want)...); !bytes.Equal(got, want) || !slices.Equal(starts, tt.starts) {
			t.Errorf("%s: got % x at %d, want % x at %d", tt.name, got, starts, want, tt.starts)
		}
	}
}

// TestBounds: what a symbol table may claim does not make the work unbounded.
func TestBounds(t *testing.T) {
	long := bytes.Repeat([]byte{0x90}, MaxCode+1)
	f := Analyze(Input{Addr: base, Code: long})
	if got := verdict(f, 0, Ours); got != "function_too_long" || len(f.Insts()) != 0 {
		t.Errorf("one byte too long: %s, %d instructions", got, len(f.Insts()))
	}
	f = Analyze(Input{Addr: base, Code: long[1:]})
	if got := verdict(f, MaxCode-5, Ours); got != "ok 5 @1 2 3 4" {
		t.Errorf("as long as can be: %s", got)
	}
	f = Analyze(Input{Addr: base})
	if got := verdict(f, 0, Ours); got != "not_boundary" || f.Entry() != 0 {
		t.Errorf("no code: %s", got)
	}
	// The address space's end.
	f = Analyze(Input{Addr: ^uint64(0) - 7, Code: code(t, "90 90 90 90 90 eb fa c3")})
	if got := verdict(f, 0, Ours); got != "jump_into_region" {
		t.Errorf("at the end of the address space: %s", got)
	}
}

// TestPatched and the entry after endbr.
func TestPatched(t *testing.T) {
	in := Input{Addr: base, Code: code(t, "f3 0f 1e fa 0f 1f 44 00 00 90 90 90 90 90 c3"), Patched: func(lo, hi uint64) string {
		if lo < base+9 && hi > base+4 {
			return "ftrace"
		}
		return ""
	}}
	f := Analyze(in)
	if f.Entry() != 4 {
		t.Errorf("entry at %d, want 4", f.Entry())
	}
	for off, want := range map[int]string{4: "patched_site", 9: "ok 5 @1 2 3 4"} {
		for _, r := range []Rule{Kernel, Ours} {
			if got := verdict(f, off, r); got != want {
				t.Errorf("at %d by %v: got %q, want %q", off, r, got, want)
			}
		}
	}
	_, no := f.Region(4, Ours)
	if got, want := no.String(), "patched_site at +0x4: ftrace"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if off, err, bad := f.FirstUndecodable(); bad {
		t.Errorf("undecodable at %d: %v", off, err)
	}
}

// TestEdges: a possible target of a branch is code, and not inside a region; padding
// that the guest rewrites does not count.
func TestEdges(t *testing.T) {
	in := Input{Addr: base, Code: code(t, "89 f8 ff c0 89 c0 83 c0 01 c3 cc cc cc cc cc 89 f8 89 f8 89 f8 c3 cc cc cc cc"), Edges: []uint64{base + 4, base + 15}}
	f := Analyze(in)
	for off, want := range map[int]string{0: "jump_into_region", 4: "ok 5 @2", 9: "ok 5 @1 2 3 4", 15: "ok 6 @2 4"} {
		if got := verdict(f, off, Ours); got != want {
			t.Errorf("at %d: got %q, want %q", off, got, want)
		}
	}
	if !f.Branched(4) || !f.Branched(15) || f.Branched(2) || f.Branched(26) {
		t.Error("branches lead elsewhere")
	}
	in.Edges, in.Patched = nil, func(lo, hi uint64) string {
		if lo < base+14 && hi > base+10 {
			return "return"
		}
		return ""
	}
	f = Analyze(in)
	for off, want := range map[int]string{0: "ok 6 @2 4", 6: "patched_site", 9: "patched_site", 15: "unreached"} {
		if got := verdict(f, off, Ours); got != want {
			t.Errorf("without edges, at %d: got %q, want %q", off, got, want)
		}
	}
}
