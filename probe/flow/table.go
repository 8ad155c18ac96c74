package flow

import (
	"encoding/binary"
	"slices"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Bounds of the search for a jump table.
const (
	maxTable  = 4096 // entries
	tableBack = 32   // instructions before the jump that are followed
)

// jumpTable is the table of an indirect jump.
type jumpTable struct {
	addr    uint64
	n, size int      // number of entries, and bytes of each
	targets []uint64 // ascending, each once
}

// jumpTable returns the table of the indirect jump at index k; false if it is not
// certain. The instructions right before the jump are followed in a straight line,
// from the last place where another path joins. They must compute the target as gcc,
// clang and Go do for a switch, in any order and with any unrelated instructions in
// between:
//
//	cmp $n, %i; ja default; jmp *table(,%i,8)
//	cmp $n, %i; ja default; lea table(%rip), %b; jmp *(%b,%i,8)
//	cmp $n, %i; ja default; lea table(%rip), %b; movslq (%b,%i,4), %t; add %b, %t; jmp *%t
//
// or have and $n, %i instead of the comparison. A table is rejected if an entry leads
// out of this function, or into the middle of an instruction that a path reaches.
func (f *Func) jumpTable(k int) (jumpTable, bool) {
	if f.in.Read == nil {
		return jumpTable{}, false
	}
	low := k
	for low > 0 && k-low < tableBack && f.leadsTo(low-1, low) {
		low--
	}
	s := state{vns: numRegs}
	for r := range s.regs {
		s.regs[r].vn = r
	}
	for ; low < k; low++ {
		s.step(f, &f.insts[low])
	}
	j := &f.insts[k]
	v := s.jump(j, f.in.Addr)
	if v.entries == 0 {
		return jumpTable{}, false
	}
	return f.readTable(v)
}

// leadsTo reports whether the instruction at index b is reached only by falling
// through from the one at index a, as far as branches are known.
func (f *Func) leadsTo(a, b int) bool {
	i, next := &f.insts[a], &f.insts[b]
	if i.end() != next.Off || !i.Reached || !continues(&i.Inst) {
		return false
	}
	switch i.Class() {
	case x86.ClassCall, x86.ClassCallInd, x86.ClassFar, x86.ClassSyscall, x86.ClassInterrupt:
		return false // registers may have any value afterwards
	}
	at := f.in.Addr + uint64(next.Off)
	if _, ok := firstInto(f.branches, at, at+1); ok {
		return false
	}
	return f.in.Known == nil || len(f.in.Known().Targets(at, at+1)) == 0
}

const numRegs = 16

// value is the knowledge about a register. Values with the same number have the same
// low 32 bits.
type value struct {
	vn    int
	zext  bool   // the upper half is clear
	addr  uint64 // the value itself, if known is set
	known bool
	// table is the address of the array from which an entry was loaded, with entries
	// of size bytes; added says that the table's own address was added to it.
	table         uint64
	entries, size int
	added         bool
}

// state is the knowledge about registers and flags between two instructions.
type state struct {
	regs  [numRegs]value
	vns   int           // numbers in use
	below map[int]int64 // by number: the low 32 bits are below it
	low8  map[int]int   // by number: that of its lowest byte
	cmp   comparison    // the last comparison, while the flags are valid
}

// comparison is a comparison of a register with a constant.
type comparison struct {
	vn   int
	n    int64 // the constant plus 1; 0: no comparison
	wide bool  // of all 64 bits of reg
	reg  x86.Reg64
}

func (s *state) newValue() value { s.vns++; return value{vn: s.vns} }

// noteBound records that the low 32 bits of number vn are below n.
func (s *state) noteBound(vn int, n int64) {
	if s.below == nil {
		s.below = map[int]int64{}
	}
	if old, ok := s.below[vn]; !ok || n < old {
		s.below[vn] = n
	}
}

// byteOf returns the number of the lowest byte of v.
func (s *state) byteOf(v value) int {
	if s.low8 == nil {
		s.low8 = map[int]int{}
	}
	n, ok := s.low8[v.vn]
	if !ok {
		n = s.newValue().vn
		s.low8[v.vn] = n
	}
	return n
}

// set sets a register to the result of an instruction with i's operand size.
func (s *state) set(r x86.Reg64, v value, i *x86.Inst) {
	switch {
	case r >= numRegs:
	case i.Has(x86.PrefixREXW):
		s.regs[r] = v
	case i.Has(x86.PrefixOpSize):
		s.regs[r] = s.newValue()
	default:
		v.zext, v.addr = true, uint64(uint32(v.addr))
		v.entries = 0
		s.regs[r] = v
	}
}

// forget makes all registers unknown.
func (s *state) forget() {
	for r := range s.regs {
		s.regs[r] = s.newValue()
	}
	s.cmp.n = 0
}

// get returns the value of a register.
func (s *state) get(r x86.Reg64) value {
	if r >= numRegs {
		return s.newValue()
	}
	return s.regs[r]
}

// step follows one instruction.
func (s *state) step(f *Func, i *Inst) {
	reg, rm, mod3 := i.RegReg(), i.RMReg(), i.HasModRM && i.Mod() == 3
	arith := false // the instruction writes the flags
	switch op := i.Opcode; {
	case i.Class() == x86.ClassNop:
		return
	case i.Class() == x86.ClassCondJump:
		s.refine(op & 0xf)
		return
	case i.Enc != x86.Legacy || i.Map > x86.Map0F || i.Has(x86.PrefixAddrSize):
		s.forget()
		return
	case i.Map == x86.Map0F && op == 0xb6 && mod3 && (i.Has(x86.PrefixREX) || i.RM() < 4):
		s.set(reg, value{vn: s.byteOf(s.get(rm))}, &i.Inst)
		if reg < numRegs {
			s.regs[reg].zext = true
		}
	case i.Map == x86.Map0F && (op == 0xb6 || op == 0xb7):
		s.set(reg, s.newValue(), &i.Inst)
	case i.Map == x86.Map0F:
		s.forget()
		return
	case op == 0x89 && mod3:
		s.set(rm, s.get(reg), &i.Inst)
	case op == 0x8b && mod3:
		s.set(reg, s.get(rm), &i.Inst)
	case op == 0x88 && !mod3, op == 0x89, op == 0xc6 && !mod3, op == 0xc7 && !mod3: // stores
	case op == 0x8b || op == 0x63 && !mod3:
		s.set(reg, s.load(i, f.in.Addr, op == 0x63), &i.Inst)
	case op == 0x8d && i.RIPRelative():
		s.set(reg, s.constant(i.RIPTarget(f.in.Addr+uint64(i.Off))), &i.Inst)
	case op == 0x8d, op == 0x63:
		s.set(reg, s.newValue(), &i.Inst)
	case op >= 0xb8 && op <= 0xbf:
		s.set(x86.Reg64(op&7)|i.RMReg(), s.constant(uint64(i.Imm)), &i.Inst) // no ModRM: only the extension bit
	case op == 0xc7 && i.Reg() == 0:
		s.set(rm, s.constant(uint64(i.Imm)), &i.Inst)
	case op == 0x01 && mod3:
		arith = true
		s.set(rm, s.sum(s.get(rm), s.get(reg)), &i.Inst)
	case op == 0x03 && mod3:
		arith = true
		s.set(reg, s.sum(s.get(reg), s.get(rm)), &i.Inst)
	case (op == 0x81 || op == 0x83) && i.Reg() == 7 && mod3 || op == 0x3d:
		s.compare(i, rm, op == 0x3d)
		return
	case op == 0x80 && i.Reg() == 7 && mod3 && (i.Has(x86.PrefixREX) || i.RM() < 4):
		s.cmp = comparison{vn: s.byteOf(s.get(rm)), n: int64(uint8(i.Imm)) + 1}
		return
	case op == 0x3c:
		s.cmp = comparison{vn: s.byteOf(s.regs[x86.RAX]), n: int64(uint8(i.Imm)) + 1}
		return
	case (op == 0x81 || op == 0x83) && mod3:
		arith = true
		v := s.newValue()
		if i.Reg() == 4 && i.Imm >= 0 && !i.Has(x86.PrefixOpSize) {
			v.zext = true
			s.noteBound(v.vn, i.Imm+1)
		}
		s.set(rm, v, &i.Inst)
	case op < 0x40 && op&7 == 1 && mod3 && op>>3 != 7:
		arith = true
		s.set(rm, s.newValue(), &i.Inst)
	case op < 0x40 && op&7 == 3 && op>>3 != 7:
		arith = true
		s.set(reg, s.newValue(), &i.Inst)
	case op == 0x85, op == 0x39, op == 0x3b:
		arith = true
	default:
		s.forget()
		return
	}
	if arith {
		s.cmp.n = 0
	}
}

// constant is a known value.
func (s *state) constant(v uint64) value {
	c := s.newValue()
	c.addr, c.known = v, true
	return c
}

// compare records a comparison with a constant.
func (s *state) compare(i *Inst, rm x86.Reg64, eax bool) {
	if eax {
		rm = x86.RAX
	}
	s.cmp = comparison{}
	if v := s.get(rm); i.Imm >= 0 && i.Imm < maxTable && !i.Has(x86.PrefixOpSize) {
		s.cmp = comparison{vn: v.vn, n: i.Imm + 1, wide: i.Has(x86.PrefixREXW), reg: rm}
	}
}

// refine records the consequences of a conditional jump that was not taken.
func (s *state) refine(cond uint8) {
	n := s.cmp.n
	switch {
	case n == 0:
		return
	case cond == 0x7: // ja: at most the constant
	case cond == 0x3: // jae: below it
		n--
	default:
		return
	}
	s.noteBound(s.cmp.vn, n)
	if r := s.cmp.reg; s.cmp.wide && r < numRegs && s.regs[r].vn == s.cmp.vn {
		s.regs[r].zext = true
	}
}

// index returns the number of values that a register, as a 64-bit index, can
// have; 0 when it is not known.
func (s *state) index(r x86.Reg64) int {
	v := s.get(r)
	n, ok := s.below[v.vn]
	if !ok || !v.zext || n < 1 || n > maxTable {
		return 0
	}
	return int(n)
}

// load is the value that i loads, possibly an entry of a table.
func (s *state) load(i *Inst, addr uint64, signed bool) value {
	v := s.newValue()
	m, ok := i.Mem()
	size := 8
	if signed {
		size = 4
	}
	if ok && i.Has(x86.PrefixREXW) {
		v.table, v.entries, v.size = s.operand(&m, size)
	}
	return v
}

// operand returns the table that contains a memory operand.
func (s *state) operand(m *x86.Mem, size int) (table uint64, n, entry int) {
	if m.RIP || m.Vector || m.Index == x86.NoReg || int(m.Scale) != size || m.Segment != x86.SegNone {
		return 0, 0, 0
	}
	table = uint64(m.Disp)
	if m.Base != x86.NoReg {
		b := s.get(m.Base)
		if !b.known {
			return 0, 0, 0
		}
		table += b.addr
	}
	return table, s.index(m.Index), size
}

// sum adds two values: an entry and its table's address make a target.
func (s *state) sum(a, b value) value {
	v := s.newValue()
	for range 2 {
		if a.entries != 0 && a.size == 4 && !a.added && b.known && b.addr == a.table {
			v.table, v.entries, v.size, v.added = a.table, a.entries, a.size, true
		}
		a, b = b, a
	}
	return v
}

// jump returns the table that the indirect jump takes its target from, with 0 entries
// if it is not from a table.
func (s *state) jump(j *Inst, addr uint64) value {
	if m, ok := j.Mem(); ok {
		v := value{}
		v.table, v.entries, v.size = s.operand(&m, 8)
		return v
	}
	v := s.get(j.RMReg())
	if v.size == 4 && !v.added {
		return value{}
	}
	return v
}

// readTable reads the table's entries: addresses of 8 bytes, or offsets of 4
// from the table.
func (f *Func) readTable(v value) (jumpTable, bool) {
	t := jumpTable{addr: v.table, n: v.entries, size: v.size}
	b := f.in.Read(t.addr, t.n*t.size)
	if len(b) < t.n*t.size {
		return jumpTable{}, false
	}
	for n := 0; n < t.n*t.size; n += t.size {
		to := t.addr
		if t.size == 8 {
			to = binary.LittleEndian.Uint64(b[n:])
		} else {
			to += uint64(int64(int32(binary.LittleEndian.Uint32(b[n:]))))
		}
		if off := int(to - f.in.Addr); !f.inside(to) || f.insideReached(off) && !f.reachedAt(off) {
			return jumpTable{}, false
		}
		t.targets = append(t.targets, to)
	}
	slices.Sort(t.targets)
	t.targets = slices.Compact(t.targets)
	return t, true
}

// insideReached reports whether off is inside a reached instruction, whether or not
// others begin there.
func (f *Func) insideReached(off int) bool {
	k, _ := f.Index(off)
	for k--; k >= 0 && f.insts[k].Off > off-x86.MaxLen; k-- {
		if f.insts[k].Reached && f.insts[k].end() > off {
			return true
		}
	}
	return false
}

// findLeaTarget returns the address that the last lea relative to RIP before index k
// has put into register r, for finding data: if another instruction has written the
// register since, the result is wrong, which at worst forbids too much.
func (f *Func) findLeaTarget(k int, r x86.Reg64) (uint64, bool) {
	if !f.leaText {
		return 0, false
	}
	for at := k - 1; at >= max(0, k-tableBack); at-- {
		i := &f.insts[at]
		if isLea(&i.Inst) && i.RegReg() == r {
			if !i.RIPRelative() {
				return 0, false
			}
			return i.RIPTarget(f.in.Addr + uint64(i.Off)), true
		}
	}
	return 0, false
}
