package machine

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// form is one instruction of the corpus with a state to run it from.
type form struct {
	name string
	text string // as objdump prints the corpus's example
	code []byte // as it stands in the guest: operands point into the arena
	regs [16]uint64
	fl   uint64
	mem  map[int]uint64 // words of the arena that must hold an address
}

// bits returns a set of opcodes from pairs of first and last.
func opcodes(pairs ...byte) (s [256]bool) {
	for i := 0; i < len(pairs); i += 2 {
		for op := int(pairs[i]); op <= int(pairs[i+1]); op++ {
			s[op] = true
		}
	}
	return s
}

// What runs at both levels without privilege, without a fault for the operands
// that aim gives, with a result that depends on nothing but the state, and on
// every x86-64 processor of the last ten years.
var (
	map0Forms = opcodes(0x00, 0x05, 0x08, 0x0d, 0x10, 0x15, 0x18, 0x1d, 0x20, 0x25, 0x28, 0x2d, 0x30, 0x35, 0x38, 0x3d,
		0x50, 0x5f, 0x63, 0x63, 0x68, 0x6b, 0x70, 0x81, 0x83, 0x8b, 0x8d, 0x8d, 0x8f, 0x99, 0x9c, 0x9f, 0xa4, 0xa9, 0xaa, 0xbf,
		0xc0, 0xc3, 0xc6, 0xc7, 0xc9, 0xc9, 0xd0, 0xd3, 0xd7, 0xd7, 0xe0, 0xe3, 0xe8, 0xe9, 0xeb, 0xeb, 0xf5, 0xf9, 0xfc, 0xff)
	map0FForms = opcodes(0x0d, 0x0d, 0x10, 0x17, 0x1f, 0x1f, 0x28, 0x29, 0x2c, 0x2f, 0x40, 0x4f, 0x50, 0x70, 0x74, 0x76, 0x7e, 0x7f,
		0x80, 0x8f, 0x90, 0x9f, 0xa3, 0xa5, 0xab, 0xad, 0xaf, 0xb1, 0xb3, 0xb3, 0xb6, 0xb8, 0xba, 0xc1, 0xc2, 0xc6, 0xc8, 0xcf,
		0xd1, 0xef, 0xf1, 0xfe)
	map38Forms = opcodes(0x00, 0x0b, 0x1c, 0x1e)
	// VEX: AVX, AVX2, BMI1 and BMI2 of 2013 (Haswell).
	vex0FForms = opcodes(0x10, 0x17, 0x28, 0x29, 0x2e, 0x2f, 0x50, 0x70, 0x74, 0x77, 0x7c, 0x7f, 0xc2, 0xc2, 0xc4, 0xc6, 0xd0, 0xef, 0xf1, 0xf6, 0xf8, 0xfe)
	vex38Forms = opcodes(0x00, 0x0c, 0x16, 0x16, 0x18, 0x1e, 0x20, 0x25, 0x28, 0x29, 0x2b, 0x41, 0x45, 0x47, 0x58, 0x5a, 0x78, 0x79, 0x8c, 0x8c, 0xf2, 0xf3, 0xf5, 0xf7)
	vex3AForms = opcodes(0x00, 0x02, 0x04, 0x06, 0x08, 0x0f, 0x14, 0x19, 0x20, 0x22, 0x38, 0x39, 0x40, 0x42, 0x46, 0x46, 0x4a, 0x4c, 0xf0, 0xf0)
)

// runnableVEX is runnable for AVX and BMI instructions at CPL3.
func runnableVEX(i *x86.Inst) bool {
	if m, ok := i.Mem(); i.Enc != x86.VEX || i.Prefix&x86.PrefixAddrSize != 0 || ok && m.Vector {
		return false
	}
	switch i.Map {
	case x86.Map0F:
		return vex0FForms[i.Opcode] && i.Opcode != 0xf7
	case x86.Map0F38:
		return vex38Forms[i.Opcode]
	case x86.Map0F3A:
		return vex3AForms[i.Opcode]
	}
	return false
}

// lockable reports whether LOCK may stand before the instruction: those that
// change memory, of a list (SDM Vol. 2, LOCK).
func lockable(i *x86.Inst) bool {
	if !i.HasModRM || i.Mod() == 3 {
		return false
	}
	op := i.Opcode
	if i.Map == x86.Map0F {
		return op == 0xab || op == 0xb3 || op == 0xbb || op == 0xba && i.Reg() >= 5 || op == 0xb0 || op == 0xb1 || op == 0xc0 || op == 0xc1
	}
	switch {
	case i.Map != x86.Map0:
		return false
	case op < 0x38:
		return op&7 < 2
	case op == 0x80 || op == 0x81 || op == 0x83:
		return i.Reg() != 7
	case op == 0xf6 || op == 0xf7:
		return i.Reg() == 2 || i.Reg() == 3
	case op == 0xfe || op == 0xff:
		return i.Reg() < 2
	}
	return op == 0x86 || op == 0x87
}

// runnable reports whether the form is one that the test knows how to run.
func runnable(i *x86.Inst, cpl int) bool {
	if i.Enc != x86.Legacy || i.Prefix&x86.PrefixAddrSize != 0 || i.Prefix&x86.PrefixLock != 0 && !lockable(i) {
		return false
	}
	// A 16-bit branch goes to the first 64 KiB.
	switch c := i.Class(); c {
	case x86.ClassRet, x86.ClassJumpInd, x86.ClassCallInd:
		if i.Prefix&x86.PrefixOpSize != 0 {
			return false
		}
	}
	reg, op := i.Reg(), i.Opcode
	mod3 := i.HasModRM && i.Mod() == 3
	rep := i.Prefix&(x86.PrefixRep|x86.PrefixRepNE) != 0
	switch i.Map {
	case x86.Map0:
		switch op {
		case 0x8e, 0x9b, 0xfa, 0xfb: // segment load, fwait, cli, sti
			return false
		case 0x9d:
			return cpl == 3 // IF of the kernel's own is another test's business
		case 0x8c:
			return mod3
		case 0x8f, 0xc6, 0xc7:
			return reg == 0
		case 0xf6, 0xf7:
			return reg <= 5
		case 0xfe:
			return reg <= 1
		case 0xff:
			return reg <= 2 || reg == 4 || reg == 6
		}
		return map0Forms[op] && (!rep || op >= 0xa4 && op <= 0xaf)
	case x86.Map0F:
		switch {
		case op == 0x50 || op == 0xd7: // movmsk: no repeat prefix
			return cpl == 3 && mod3 && !rep
		case cpl == 0 && (op >= 0x10 && op <= 0x17 || op >= 0x28 && op <= 0x2f || op >= 0x50 && op <= 0x7f || op >= 0xc2 && op <= 0xc6 || op >= 0xd0):
			return false // the built-in kernel leaves vector registers alone
		case op == 0xb8: // popcnt
			return i.Prefix&x86.PrefixRep != 0
		case op == 0xbc || op == 0xbd: // tzcnt and lzcnt where the host has them
			return !rep
		case op == 0xb9:
			return false
		case op == 0xba:
			return reg >= 4
		case op == 0x0d || op == 0x1f:
			return !mod3 || op == 0x1f
		case op == 0x12 || op == 0x16 || op == 0x13 || op == 0x17 || op == 0xe7:
			return !rep
		}
		return map0FForms[op]
	case x86.Map0F38:
		return cpl == 3 && map38Forms[op] && i.Prefix&x86.PrefixOpSize != 0
	}
	return false
}

// aim makes the operands of f's instruction point into the arena, at data, and
// its branch target at the form's pad; at is the address of the form. It
// reports whether it could.
func (f *form) aim(rnd *rand.Rand, at, data uint64) bool {
	i, err := x86.Decode(f.code)
	if err != nil {
		return false
	}
	arena := data + formsArena
	inside := arena + formsArenaSize + 64*uint64(rnd.IntN(24))
	f.regs[x86.RSP] = arena + formsArenaSize + formsArenaSize/2 + 8*uint64(rnd.IntN(8))
	pad := at + formPad
	word := func(addr, v uint64) { f.mem[int(addr-data)] = v }
	switch c := i.Class(); c {
	case x86.ClassJump, x86.ClassCondJump, x86.ClassLoop, x86.ClassCall:
		return f.patch(pad-at-uint64(i.Len), func(n *x86.Inst) bool { to, ok := n.Target(at); return ok && to == pad })
	case x86.ClassRet:
		word(f.regs[x86.RSP], pad)
		return true
	case x86.ClassJumpInd, x86.ClassCallInd:
		if i.Mod() == 3 {
			r := i.RMReg()
			f.regs[r] = pad
			return r != x86.RSP
		}
		word(inside, pad)
	case x86.ClassOther, x86.ClassNop, x86.ClassInterruptFlag:
	default:
		return false
	}
	op := i.Opcode
	if i.Map == x86.Map0 {
		switch {
		case op >= 0xa0 && op <= 0xa3:
			return false // absolute addresses of 64 bits: the corpus's are nowhere
		case op >= 0xa4 && op <= 0xa7 || op >= 0xaa && op <= 0xaf:
			f.regs[x86.RSI], f.regs[x86.RDI], f.regs[x86.RCX] = inside, inside+uint64(rnd.IntN(256)), uint64(rnd.IntN(5))
			f.fl &^= 1 << 10 // up: both ends stay in the arena
			return true
		case op == 0xc9:
			f.regs[x86.RBP] = inside
			return true
		case op == 0xd7:
			f.regs[x86.RBX] = inside
			return true
		case op == 0x9d: // CPL3 may not change IF; TF, NT and AC stay as they are
			word(f.regs[x86.RSP], rnd.Uint64()&0x8d5|0x202)
			return true
		}
	}
	m, ok := i.Mem()
	if i.Map == x86.Map0F && (op == 0xa3 || op == 0xab || op == 0xb3 || op == 0xbb) {
		n := i.Reg() | rexR(f.code)
		if ok && m.Base == x86.Reg64(n) {
			return false
		}
		f.regs[n] = uint64(rnd.IntN(4000)) // the bit's number moves the address
	}
	if !ok {
		return true
	}
	if m.RIP {
		return f.patch(inside-at-uint64(i.Len), func(n *x86.Inst) bool { return n.RIPRelative() && n.RIPTarget(at) == inside })
	}
	if m.Segment != x86.SegNone || m.Base == x86.NoReg || m.Base == x86.RSP && m.Index == x86.NoReg && (m.Disp < -1024 || m.Disp > 1024) {
		return false
	}
	if m.Base == x86.RSP {
		return m.Index == x86.NoReg
	}
	if m.Index != x86.NoReg && m.Index != m.Base {
		f.regs[m.Index] = uint64(rnd.IntN(64))
	}
	where := func() uint64 {
		r := f.asRegs()
		a, _ := i.Addr(at, &r)
		return a
	}
	f.regs[m.Base] += inside - where()
	return where() == inside
}

// rexR returns the bit that REX.R adds to a register number.
func rexR(code []byte) uint8 {
	for _, b := range code {
		if b&0xf0 == 0x40 {
			return b & 4 << 1
		}
		if b == 0x0f {
			break
		}
	}
	return 0
}

// patch looks for the 4- or 1-byte displacement of the instruction by trying, and
// sets it so that good holds.
func (f *form) patch(disp uint64, good func(*x86.Inst) bool) bool {
	for _, n := range []int{4, 1} {
		for k := len(f.code) - n; k >= 1; k-- {
			old := append([]byte(nil), f.code...)
			if n == 4 {
				binary.LittleEndian.PutUint32(f.code[k:], uint32(disp))
			} else {
				f.code[k] = byte(disp)
			}
			if i, err := x86.Decode(f.code); err == nil && int(i.Len) == len(f.code) && good(&i) {
				return true
			}
			copy(f.code, old)
		}
	}
	return false
}

func (f *form) asRegs() x86.Regs {
	var r x86.Regs
	for n, v := range f.regs {
		*r.Reg(x86.Reg64(n)) = v
	}
	r.RFLAGS = f.fl
	return r
}

// loadForms reads the decoder's corpus and returns the forms that want chooses, for
// cpl, each with a random state, at most max, spread over the corpus.
func loadForms(t testing.TB, rnd *rand.Rand, cpl, max int, want func(*x86.Inst) bool) []*form {
	t.Helper()
	file, err := os.Open("../../guest/x86/testdata/corpus.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// One form per opcode, prefixes, register field and kind of operand: the
	// corpus tells more apart (each register, each addressing form).
	seen := map[string]bool{}
	var all []*form
	for sc := bufio.NewScanner(file); sc.Scan(); {
		cols := strings.Split(sc.Text(), "\t")
		if len(cols) != 3 || strings.HasPrefix(cols[0], "#") {
			continue
		}
		code, err := hex.DecodeString(cols[1])
		if err != nil {
			t.Fatalf("corpus: %v", err)
		}
		i, err := x86.Decode(code)
		if err != nil || !want(&i) {
			continue
		}
		m, mem := i.Mem()
		operand := "reg"
		if mem {
			operand = fmt.Sprint("mem", m.RIP, m.Index != x86.NoReg, m.Base == x86.RSP)
		}
		key := fmt.Sprint(i.Map, i.Opcode, i.Prefix&^x86.PrefixREX, operand)
		if i.HasModRM {
			key += fmt.Sprint("/", i.Reg())
		}
		if seen[key] {
			continue
		}
		seen[key] = true
		all = append(all, &form{text: cols[2], code: code[:i.Len]})
	}
	if len(all) > max {
		rnd.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	}
	base := uint64(formsKernelCode)
	if cpl == 3 {
		base = formsUserCode
	}
	var out []*form
	for _, f := range all {
		if len(out) == max {
			break
		}
		f.mem = map[int]uint64{}
		for n := range f.regs {
			f.regs[n] = rnd.Uint64() >> rnd.IntN(64)
		}
		// Status flags and DF at random; IF as user code has it, and off in the
		// kernel, so that no interrupt uses the arena as its stack.
		f.fl = rnd.Uint64()&0xcd5 | 2
		if cpl == 3 {
			f.fl |= 1 << 9
		}
		if f.aim(rnd, base+formsFirst+uint64(len(out))*formSlot, base+formsDataOff) {
			f.name = fmt.Sprintf("form_%04d", len(out))
			out = append(out, f)
		}
	}
	return out
}
