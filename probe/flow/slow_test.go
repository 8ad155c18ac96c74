package flow

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// slow is the checker that Region is held against: it decides one offset from
// the bytes alone, by walking the function once for every byte of the region.
type slow struct {
	in      Input
	starts  map[int]x86.Inst // in a straight line, for Linux's rules
	end     int              // of what decodes so
	known   map[int]x86.Inst // on known paths
	rest    map[int]x86.Inst // what else decodes
	targets []uint64         // of tables
	lost    bool             // an indirect jump has no table
}

func newSlow(in Input, f *Func) *slow {
	s := &slow{in: in, starts: map[int]x86.Inst{}, known: map[int]x86.Inst{}, rest: map[int]x86.Inst{}}
	for s.end < len(in.Code) {
		i, err := x86.Decode(in.Code[s.end:])
		if err != nil {
			break
		}
		s.starts[s.end] = i
		s.end += int(i.Len)
	}
	// Targets of tables are not tested here.
	for _, b := range f.branches {
		if k, ok := f.Index(b.from); ok && f.insts[k].Class() == x86.ClassJumpInd {
			s.targets = append(s.targets, b.to)
		}
	}
	s.walk()
	for _, all := range []map[int]x86.Inst{s.known, s.rest} {
		for off, i := range all {
			if i.Enc != x86.VEX && i.Enc != x86.EVEX && i.Enc != x86.XOP && i.Map == x86.Map0 && i.Opcode == 0xff && (i.Reg() == 4 || i.Reg() == 5) {
				found := slices.ContainsFunc(f.IndirectJumps(), func(j IndirectJump) bool { return j.Off == off && j.Targets != nil })
				s.lost = s.lost || !found
			}
		}
	}
	return s
}

// walk adds, until nothing changes, whatever the rules of paths give.
func (s *slow) walk() {
	n := len(s.in.Code)
	leads := make([]bool, n+x86.MaxLen+1)
	leads[0] = !s.in.Label
	for off := range n {
		at := s.in.Addr + uint64(off)
		leads[off] = leads[off] || slices.Contains(s.targets, at) || s.in.Known != nil && !s.in.AllCode && slices.Contains(s.in.Known().paths, at)
	}
	for changed := true; changed; {
		changed = false
		for off := range n {
			if _, done := s.known[off]; done || !leads[off] {
				continue
			}
			i, err := x86.Decode(s.in.Code[off:])
			if err != nil {
				continue
			}
			s.known[off], changed = i, true
			t, branch := i.Target(s.in.Addr + uint64(off))
			within := branch && t >= s.in.Addr && t < s.in.Addr+uint64(n)
			if within {
				leads[t-s.in.Addr] = true
			}
			switch i.Class() {
			case x86.ClassJump, x86.ClassRet, x86.ClassJumpInd, x86.ClassIRet, x86.ClassUndefined, x86.ClassTransfer, x86.ClassVMEntry:
			case x86.ClassFar:
				leads[off+int(i.Len)] = leads[off+int(i.Len)] || i.Opcode == 0xff && i.Reg() == 3
			case x86.ClassCall:
				leads[off+int(i.Len)] = leads[off+int(i.Len)] || !within || t == s.in.Addr
			default:
				leads[off+int(i.Len)] = true
			}
		}
	}
	for off := 0; off < n; off++ {
		if s.inKnown(off) {
			continue
		}
		i, err := x86.Decode(s.in.Code[off:])
		if err != nil {
			continue
		}
		free := true
		for k := range int(i.Len) {
			free = free && !s.inKnown(off+k)
		}
		if free {
			s.rest[off] = i
			off += int(i.Len) - 1
		}
	}
	s.addAccounts()
}

// addAccounts adds to the rest, until nothing changes, what branches and symbols say
// begins there, and what follows that.
func (s *slow) addAccounts() {
	n := len(s.in.Code)
	leads := map[uint64]bool{}
	for _, a := range s.in.Symbols {
		leads[a] = true
	}
	if s.in.Known != nil {
		for _, t := range s.in.Known().targets {
			leads[t] = true
		}
	}
	for changed := true; changed; {
		changed = false
		for _, all := range []map[int]x86.Inst{s.known, s.rest} {
			for off, i := range all {
				if t, ok := i.Target(s.in.Addr + uint64(off)); ok {
					leads[t] = true
				}
			}
		}
		for off := range n {
			if _, done := s.rest[off]; done || !leads[s.in.Addr+uint64(off)] {
				continue
			}
			i, err := x86.Decode(s.in.Code[off:])
			for k := range int(i.Len) {
				if err == nil && s.inKnown(off+k) {
					err = x86.ErrInvalid
				}
			}
			if err == nil {
				s.rest[off], changed = i, true
				leads[s.in.Addr+uint64(off)+uint64(i.Len)] = true
			}
		}
	}
}

// boundary reports whether an instruction begins at off for certain enough.
func (s *slow) boundary(off int) bool {
	for o, i := range s.known {
		if o < off && off < o+int(i.Len) {
			return false
		}
	}
	if _, ok := s.known[off]; ok {
		return true
	}
	in, ok := s.starts[off]
	for _, all := range []map[int]x86.Inst{s.known, s.rest} {
		for o, i := range all {
			ok = ok && (o == off || o >= off+int(in.Len) || o+int(i.Len) <= off)
		}
	}
	return ok
}

// inKnown reports whether the byte at off is part of an instruction on a known
// path.
func (s *slow) inKnown(off int) bool {
	for o, i := range s.known {
		if o <= off && off < o+int(i.Len) {
			return true
		}
	}
	return false
}

// arrives reports whether any of the instructions that counts jumps to addr.
func (s *slow) arrives(addr uint64, all map[int]x86.Inst, counts func(x86.Class) bool) bool {
	for off, i := range all {
		at := s.in.Addr + uint64(off)
		if i.Enc != x86.Legacy && i.Enc != x86.REX2 || i.Enc == x86.REX2 && i.Class() == x86.ClassOther {
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
	case len(b) == 15, first.Class() == x86.ClassIRet:
		return false
	case first.Map == x86.Map0 && first.Opcode == 0xff && first.Reg() >= 2 && first.Reg() <= 5 && (first.Mod() != 3 || first.Reg() == 3 || first.Reg() == 5):
		return false
	case first.Map == x86.Map0F && first.Opcode == 1 && first.Mod() == 3 && first.Reg() == 0:
		return false
	}
	for o, i := range s.starts {
		if s.in.Exception != nil && s.in.Exception(s.in.Addr+uint64(o)) {
			return false
		}
		if !thunks && i.Map == x86.Map0 && i.Opcode == 0xff && i.Reg()&6 == 4 {
			return false
		}
	}
	for n := uint64(1); n <= 5; n++ {
		if s.arrives(s.in.Addr+uint64(off)+n, s.starts, func(c x86.Class) bool {
			return c == x86.ClassJump || c == x86.ClassCondJump || c == x86.ClassLoop
		}) {
			return false
		}
	}
	for n := 0; n < 5; {
		i, ok := s.starts[off+n]
		if !ok || !i.KernelBoostable() || i.Map == x86.Map0 && i.Opcode == 0x8e && i.Reg() == 2 {
			return false
		}
		n += int(i.Len)
	}
	return true
}

// findRegion applies our rules and returns the region's instructions, or none.
func (s *slow) findRegion(off int, calls bool) []x86.Inst {
	if s.lost || len(s.in.Code)-off < 5 {
		return nil
	}
	n, dead := 0, false
	var out []x86.Inst
	for n < 5 {
		i, ok := s.known[off+n]
		c := i.Class()
		if dead {
			// Padding, and all that follows it is, up to the next known path.
			if !s.padding(off + n) {
				return nil
			}
			i, _ = x86.Decode(s.in.Code[off+n:])
			out, n = append(out, i), n+int(i.Len)
			continue
		}
		if !ok {
			return nil
		}
		dead = c == x86.ClassJump || c == x86.ClassJumpInd || c == x86.ClassRet
		p := x86.Analyze(s.in.Code[off+n:], s.in.Addr+uint64(off+n), x86.Options{})
		var buf [x86.MaxRelocated]byte
		_, err := x86.Relocate(buf[:], &i, s.in.Addr+uint64(off+n), s.in.Addr+uint64(off+n))
		switch {
		case s.in.Exception != nil && s.in.Exception(s.in.Addr+uint64(off+n)):
			return nil
		case c == x86.ClassCall:
			if !calls || n+int(i.Len) < 5 || i.VendorDependent() || i.Has(x86.PrefixLock) {
				return nil
			}
		case err != nil, p.Kind == x86.Refuse, p.NoStep, i.IsEndbr(), c == x86.ClassFar:
			return nil
		case i.Map == x86.Map0 && i.Enc == x86.Legacy && i.Opcode&0xf8 == 0xd8:
			return nil
		case (dead || c == x86.ClassCondJump || c == x86.ClassLoop || c == x86.ClassInterruptFlag) && i.Has(x86.PrefixLock):
			return nil
		}
		out, n = append(out, i), n+int(i.Len)
	}
	if !s.alone(off, n) {
		return nil
	}
	last := out[len(out)-1]
	if last.Opcode == 0xfb && last.Class() == x86.ClassInterruptFlag {
		next, ok := s.known[off+n]
		if !ok {
			next, ok = s.rest[off+n]
		}
		switch c := next.Class(); {
		case ok && (c == x86.ClassWait || c == x86.ClassTransfer || c == x86.ClassVMEntry || c == x86.ClassIRet):
			return nil
		}
	}
	return out
}

// padding reports whether all from off to the next known path, or the
// function's end, is padding that nothing refers to.
func (s *slow) padding(off int) bool {
	for off < len(s.in.Code) {
		if _, path := s.known[off]; path {
			return true
		}
		i, err := x86.Decode(s.in.Code[off:])
		switch {
		case err != nil, s.inKnown(off), s.mentioned(off, int(i.Len)):
			return false
		case i.Opcode == 0xcc && i.Len == 1:
		case i.Class() == x86.ClassNop && i.Map == x86.Map0 && !i.Has(x86.PrefixRep):
		case i.Map == x86.Map0F && i.Enc == x86.Legacy && i.Opcode == 0x1f && i.Reg() == 0:
		default:
			return false
		}
		off += int(i.Len)
	}
	return !s.in.Open
}

// mentioned reports whether some instruction has one of the n bytes at off as
// memory, or their address.
func (s *slow) mentioned(off, n int) bool {
	for _, all := range []map[int]x86.Inst{s.known, s.rest} {
		for o, i := range all {
			if t, size, open, ok := s.memory(o, i); ok {
				if t < off+n && off < t+size {
					return true
				}
				if open && t <= off && !s.pathAfter(t, off) {
					return true
				}
			}
			if _, branch := i.Target(0); !branch && uint64(i.Imm) >= s.in.Addr+uint64(off) && uint64(i.Imm) < s.in.Addr+uint64(off+n) {
				return true
			}
		}
	}
	return false
}

// memory returns the place in the function that an instruction has as memory,
// or, with lea, the address of.
func (s *slow) memory(o int, i x86.Inst) (t, size int, open, ok bool) {
	m, ok := i.Mem()
	if !ok || m.Segment != x86.SegNone {
		return 0, 0, false, false
	}
	var a uint64
	switch {
	case m.RIP:
		a = i.RIPTarget(s.in.Addr + uint64(o))
	case m.Base == x86.NoReg:
		a = uint64(m.Disp)
	default:
		if a, ok = s.leaBefore(o, m.Base); !ok && m.Index != x86.NoReg && m.Scale == 1 {
			a, ok = s.leaBefore(o, m.Index)
		}
		if !ok {
			return 0, 0, false, false
		}
		a += uint64(m.Disp)
	}
	if a < s.in.Addr || a >= s.in.Addr+uint64(len(s.in.Code)) {
		return 0, 0, false, false
	}
	t = int(a - s.in.Addr)
	switch {
	case i.Opcode == 0x8d && i.Map == x86.Map0 && (i.Enc == x86.Legacy || i.Enc == x86.REX2):
		return t, 1, false, true
	case m.Access == x86.AccessNone:
		return 0, 0, false, false
	case m.Size == 0:
		return t, 1, true, true
	}
	return t, int(m.Size), m.Index != x86.NoReg, true
}

// leaBefore returns what the last of the 32 instructions before o that is a lea
// to r has put there.
func (s *slow) leaBefore(o int, r x86.Reg64) (uint64, bool) {
	for k, seen := o-1, 0; k >= 0 && seen < tableBack; k-- {
		i, ok := s.known[k]
		if !ok {
			i, ok = s.rest[k]
		}
		if !ok {
			continue
		}
		seen++
		if i.Opcode == 0x8d && i.Map == x86.Map0 && (i.Enc == x86.Legacy || i.Enc == x86.REX2) && i.RegReg() == r {
			return i.RIPTarget(s.in.Addr + uint64(k)), i.RIPRelative()
		}
	}
	return 0, false
}

// pathAfter reports whether a known path continues after lo, up to hi.
func (s *slow) pathAfter(lo, hi int) bool {
	for off := range s.known {
		if off > lo && off <= hi {
			return true
		}
	}
	return false
}

// alone reports whether nothing comes into the n bytes at off, or is in them,
// besides what begins there.
func (s *slow) alone(off, n int) bool {
	for k := 1; k < n; k++ {
		at := s.in.Addr + uint64(off+k)
		if s.arrives(at, s.known, anyBranch) || s.arrives(at, s.rest, anyBranch) || slices.Contains(s.targets, at) {
			return false
		}
		if s.in.Known != nil && slices.Contains(s.in.Known().targets, at) {
			return false
		}
	}
	if s.mentioned(off+1, n-1) {
		return false
	}
	for o, i := range s.known {
		if o < off && o+int(i.Len) > off {
			return false
		}
	}
	for _, all := range []map[int]x86.Inst{s.known, s.rest} {
		for o, i := range all {
			if o < off && o+int(i.Len) == off && i.Class() == x86.ClassLoadSS {
				return false
			}
		}
	}
	return true
}

func anyBranch(x86.Class) bool { return true }

// odd reports whether the code has an instruction that Linux takes for another.
func (s *slow) odd() bool {
	for _, i := range s.starts {
		if i.Enc != x86.Legacy || i.VendorDependent() {
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
		if ok, other := f.Boundary(off); (ok && other == nil) != s.boundary(off) {
			t.Fatalf("% x: boundary at %#x: %v, %+v; want %v", s.in.Code, off, ok, other, s.boundary(off))
		}
		for _, r := range []Rule{Kernel, KernelThunks, Ours, OursCalls} {
			var want bool
			switch {
			case r >= Ours:
				want = s.findRegion(off, r == OursCalls) != nil
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
	want := s.findRegion(off, r == OursCalls)
	for k, i := range reg.Insts {
		if r < Ours {
			want = append(want[:k:k], s.starts[off+n])
		}
		if k >= len(want) || want[k] != i {
			t.Fatalf("% x at %#x by %v: instruction at +%d is not the function's", s.in.Code, off, r, n)
		}
		if n > 0 && n < 5 {
			bounds = append(bounds, n)
		}
		n += int(i.Len)
	}
	if reg.Len != n || n < 5 || n > MaxRegion || reg.Off != off || reg.Addr != s.in.Addr+uint64(off) || !slices.Equal(bounds, reg.Boundaries) {
		t.Fatalf("% x at %#x by %v: region %+v", s.in.Code, off, r, reg)
	}
}

// pieces are what random functions are made of.
var pieces = []string{
	"90", "90", "55", "5d", "53", "c3", "cc", "fb", "fa", "f4", "9c", "0fa2", "0f05", "0f0b", "8ed0", "c20800",
	"4889e5", "4883ec08", "31c0", "f30f1efa", "0f1f4000", "488d0510000000", "f3c3", "ffe0", "ffd0", "ff20", "d9c0",
	"0f10c1", "f0480fb10a", "65488b042528000000", "c5f877", "62f17c4828c1", "48cf", "0f01c1", "66eb02", "06", "f390",
}

// jumps are branches followed by a displacement of one byte.
var jumps = []string{"eb", "74", "7f", "e2", "e3"}

// knownIndex returns an index with those targets.
func knownIndex(reached bool, targets ...uint64) func() *Index {
	b := NewBuilder(func(uint64) bool { return true })
	for _, t := range targets {
		b.target(t, reached)
	}
	return b.buildKnown()
}

// buildKnown returns the index in the form of Input.Known.
func (b *Builder) buildKnown() func() *Index {
	x := b.Index()
	return func() *Index { return x }
}

// TestAgainstSlow makes random functions and compares every decision.
func TestAgainstSlow(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 1))
	yes := 0
	for range 6000 {
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
			in.Known = knownIndex(rng.IntN(2) == 0, in.Addr+uint64(rng.IntN(len(b))), in.Addr-1, in.Addr+uint64(len(b)))
		}
		if rng.IntN(3) == 0 {
			in.Symbols = []uint64{in.Addr + uint64(rng.IntN(len(b)))}
		}
		in.Label, in.Open = rng.IntN(8) == 0, rng.IntN(4) == 0
		f := Analyze(in)
		yes += newSlow(in, f).check(t, f)
	}
	if yes < 10000 {
		t.Errorf("only %d regions were allowed: the random functions test too little", yes)
	}
}
