package flow

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// slow is the checker that Region is held against: it decides one offset from
// the bytes alone, by walking the function once for every byte of the region.
type slow struct {
	in     Input
	starts map[int]insn.Inst
	end    int // of what decodes
	tables [][]uint64
}

func newSlow(in Input, indirect []IndirectJump) *slow {
	s := &slow{in: in, starts: map[int]insn.Inst{}}
	for s.end < len(in.Code) {
		i, err := insn.Decode(in.Code[s.end:])
		if err != nil {
			break
		}
		s.starts[s.end] = i
		s.end += int(i.Len)
	}
	for _, j := range indirect {
		s.tables = append(s.tables, j.Targets)
	}
	return s
}

// arrives reports whether any instruction that counts jumps to addr.
func (s *slow) arrives(addr uint64, counts func(insn.Class) bool) bool {
	for off, i := range s.starts {
		at := s.in.Addr + uint64(off)
		if i.Enc != insn.Legacy && i.Enc != insn.REX2 || i.Enc == insn.REX2 && i.Class() == insn.ClassOther {
			continue
		}
		if t, ok := i.Target(at); ok && t == addr && counts(i.Class()) {
			return true
		}
	}
	return false
}

// kernel applies part C.1 of the behaviour digest and says yes or no. It is
// asked only about code without vector instructions and 16-bit branches, which
// Linux takes for something else.
func (s *slow) kernel(off int, thunks bool) bool {
	first, ok := s.starts[off]
	if !ok || s.end != len(s.in.Code) || len(s.in.Code)-off < 5 {
		return false
	}
	switch b := first.Bytes(); {
	case len(b) == 15, first.Class() == insn.ClassIRet:
		return false
	case first.Map == insn.Map0 && first.Opcode == 0xff && first.Reg() >= 2 && first.Reg() <= 5 && (first.Mod() != 3 || first.Reg() == 3 || first.Reg() == 5):
		return false
	case first.Map == insn.Map0F && first.Opcode == 1 && first.Mod() == 3 && first.Reg() == 0:
		return false
	}
	for o, i := range s.starts {
		if s.in.Exception != nil && s.in.Exception(s.in.Addr+uint64(o)) {
			return false
		}
		if !thunks && i.Map == insn.Map0 && i.Opcode == 0xff && i.Reg()&6 == 4 {
			return false
		}
	}
	for n := uint64(1); n <= 5; n++ {
		if s.arrives(s.in.Addr+uint64(off)+n, func(c insn.Class) bool {
			return c == insn.ClassJump || c == insn.ClassCondJump || c == insn.ClassLoop
		}) {
			return false
		}
	}
	for n := 0; n < 5; {
		i, ok := s.starts[off+n]
		if !ok || !i.KernelBoostable() || i.Map == insn.Map0 && i.Opcode == 0x8e && i.Reg() == 2 {
			return false
		}
		n += int(i.Len)
	}
	return true
}

// ours applies our rules and says yes or no.
func (s *slow) ours(off int, calls bool) bool {
	n, dead := 0, false
	var last insn.Inst
	for n < 5 {
		i, ok := s.starts[off+n]
		if !ok {
			return false
		}
		c := i.Class()
		if i.Opcode == 0xcc && i.Len == 1 && c == insn.ClassInterrupt && dead {
			n++
			continue
		}
		dead = c == insn.ClassJump || c == insn.ClassJumpInd || c == insn.ClassRet
		p := insn.Analyze(s.in.Code[off+n:], s.in.Addr+uint64(off+n), insn.Options{})
		var buf [insn.MaxRelocated]byte
		_, err := insn.Relocate(buf[:], &i, s.in.Addr+uint64(off+n), s.in.Addr+uint64(off+n))
		switch {
		case s.in.Exception != nil && s.in.Exception(s.in.Addr+uint64(off+n)):
			return false
		case c == insn.ClassCall:
			if !calls || n+int(i.Len) < 5 || i.VendorDependent() || i.Has(insn.PrefixLock) {
				return false
			}
		case err != nil, p.Kind == insn.Refuse, p.NoStep, i.IsEndbr(), c == insn.ClassFar:
			return false
		case i.Map == insn.Map0 && i.Enc == insn.Legacy && i.Opcode&0xf8 == 0xd8:
			return false
		case (dead || c == insn.ClassCondJump || c == insn.ClassLoop || c == insn.ClassInterruptFlag) && i.Has(insn.PrefixLock):
			return false
		}
		n += int(i.Len)
		last = i
	}
	for k := 1; k < n; k++ {
		at := s.in.Addr + uint64(off+k)
		if s.arrives(at, func(insn.Class) bool { return true }) {
			return false
		}
		for _, table := range s.tables {
			if slices.Contains(table, at) {
				return false
			}
		}
		if s.in.Targets != nil && len(s.in.Targets(at, at+1)) > 0 {
			return false
		}
	}
	for o, i := range s.starts {
		if o+int(i.Len) == off && i.Class() == insn.ClassLoadSS {
			return false
		}
	}
	if next, ok := s.starts[off+n]; ok && last.Opcode == 0xfb && last.Class() == insn.ClassInterruptFlag {
		switch next.Class() {
		case insn.ClassWait, insn.ClassTransfer, insn.ClassVMEntry, insn.ClassIRet:
			return false
		}
	}
	return true
}

// odd reports whether the code has an instruction that Linux takes for another.
func (s *slow) odd() bool {
	for _, i := range s.starts {
		if i.Enc != insn.Legacy || i.VendorDependent() {
			return true
		}
	}
	return false
}

// check compares all decisions about one function.
func (s *slow) check(t *testing.T, f *Func) (yes int) {
	t.Helper()
	odd := s.odd()
	for off := -1; off <= len(s.in.Code); off++ {
		for _, r := range []Rule{Kernel, KernelThunks, Ours, OursCalls} {
			var want bool
			switch {
			case r >= Ours:
				want = s.ours(off, r == OursCalls)
			case odd:
				continue
			default:
				want = s.kernel(off, r == KernelThunks)
			}
			reg, no := f.Region(off, r)
			if (no == nil) != want {
				t.Fatalf("% x at %#x by %v: got %v, want %v", s.in.Code, off, r, no, want)
			}
			if no == nil {
				yes++
				s.region(t, off, reg, r)
			} else if no.Reason == "" {
				t.Fatalf("% x at %#x by %v: refused without a reason", s.in.Code, off, r)
			}
		}
	}
	return yes
}

// region checks the shape of a region.
func (s *slow) region(t *testing.T, off int, reg Region, r Rule) {
	t.Helper()
	n := 0
	var bounds []int
	for _, i := range reg.Insts {
		if want, ok := s.starts[off+n]; !ok || want != i {
			t.Fatalf("% x at %#x by %v: instruction at +%d is not the function's", s.in.Code, off, r, n)
		}
		if n > 0 && (r < Ours || i.Opcode != 0xcc || i.Class() != insn.ClassInterrupt) {
			bounds = append(bounds, n)
		}
		n += int(i.Len)
	}
	if reg.Len != n || n < 5 || n > maxRegion || reg.Off != off || reg.Addr != s.in.Addr+uint64(off) || !slices.Equal(bounds, reg.Boundaries) {
		t.Fatalf("% x at %#x by %v: region %+v", s.in.Code, off, r, reg)
	}
}

// pieces are what random functions are made of.
var pieces = []string{
	"90", "90", "55", "5d", "53", "c3", "cc", "fb", "fa", "f4", "9c", "0fa2", "0f05", "0f0b", "8ed0", "c20800",
	"4889e5", "4883ec08", "31c0", "f30f1efa", "0f1f4000", "488d0510000000", "f3c3", "ffe0", "ffd0", "ff20", "d9c0",
	"0f10c1", "f0480fb10a", "65488b042528000000", "c5f877", "62f17c4828c1", "48cf", "0f01c1", "66eb02", "06", "f390",
}

// jumps are branches with a displacement of one byte behind them.
var jumps = []string{"eb", "74", "7f", "e2", "e3"}

// TestAgainstSlow makes random functions and compares every decision.
func TestAgainstSlow(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 1))
	yes := 0
	for range 4000 {
		var b []byte
		for range 2 + rng.IntN(24) {
			switch rng.IntN(8) {
			case 0, 1:
				b = append(b, code(t, jumps[rng.IntN(len(jumps))])...)
				b = append(b, byte(rng.IntN(64)-40))
			case 2:
				b = append(b, code(t, []string{"e8", "e9", "0f85"}[rng.IntN(3)])...)
				d := uint32(rng.IntN(64) - 40)
				b = append(b, byte(d), byte(d>>8), byte(d>>16), byte(d>>24))
			default:
				b = append(b, code(t, pieces[rng.IntN(len(pieces))])...)
			}
		}
		in := Input{Addr: base + uint64(rng.IntN(64)), Code: b}
		if rng.IntN(3) == 0 {
			at := in.Addr + uint64(rng.IntN(len(b)))
			in.Exception = func(a uint64) bool { return a == at }
		}
		if rng.IntN(3) == 0 {
			x := NewIndex([]uint64{in.Addr + uint64(rng.IntN(len(b))), in.Addr - 1, in.Addr + uint64(len(b))})
			in.Targets = x.Targets
		}
		yes += newSlow(in, nil).check(t, Analyze(in))
	}
	if yes < 10000 {
		t.Errorf("only %d regions were allowed: the random functions test too little", yes)
	}
}
