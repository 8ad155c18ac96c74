//go:build linux && amd64

package x86

import (
	"syscall"
	"testing"
	"unsafe"
)

// native runs single instructions on this CPU: a page of code that loads all
// registers and flags, executes the instruction, and saves what came of it.
// Everything is reached relative to RIP, so that no register is needed.
//
// Layout of the mapping, which lies below 2 GiB so that addresses survive a
// cut to 32 bits:
//
//	0x0000  code
//	0x1000  nativeState
//	0x2000  arena: stack and operands of the instruction, arenaSize bytes
type native struct {
	mem   []byte
	base  uint64
	test  uint64 // address of the instruction under test
	pad   uint64 // where branches go that are taken
	near  uint64 // a jump to pad, within 8-bit reach of test
	enter int    // offset of the prologue's jump to the instruction
	next  int    // length of the instruction now in place
	st    *nativeState
	call  func()
	code  uintptr // what call points to
}

const (
	arenaOff  = 0x2000
	arenaSize = 0x400
	nearOff   = 0x3c0
	testOff   = 0x400
	padOff    = 0x800
	slotOff   = 0xb00
)

// nativeState is at 0x1000.
type nativeState struct {
	in, out  [16]uint64   // in the CPU's numbering
	inX      [16][16]byte // SSE registers
	outX     [16][16]byte
	inFlags  uint64
	outFlags uint64
	taken    uint64 // set by the landing pad
	goStack  uint64
}

// newNative maps and assembles. SAFETY: the mapping is executable memory that belongs
// to this native until the test ends; call is a Go function value, a pointer to a
// word that holds the code's address. The code saves the registers that Go's ABI
// keeps (RSP, RBP, R14, R15) and never blocks. A signal during the call runs on the
// thread's signal stack, so RSP may be anything.
func newNative(t testing.TB) *native {
	mem, err := syscall.Mmap(-1, 0, arenaOff+arenaSize, syscall.PROT_READ|syscall.PROT_WRITE|syscall.PROT_EXEC,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_32BIT)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	n := &native{mem: mem}
	n.code = uintptr(unsafe.Pointer(&mem[0]))
	n.base = uint64(n.code)
	n.test, n.pad, n.near = n.base+testOff, n.base+padOff, n.base+nearOff
	n.st = (*nativeState)(unsafe.Pointer(&mem[0x1000]))
	p := &n.code
	n.call = *(*func())(unsafe.Pointer(&p))
	n.prologue()
	return n
}

// field returns the offset of a field of nativeState in the mapping.
func field(off uintptr) int { return 0x1000 + int(off) }

var (
	offIn       = field(unsafe.Offsetof(nativeState{}.in))
	offOut      = field(unsafe.Offsetof(nativeState{}.out))
	offInX      = field(unsafe.Offsetof(nativeState{}.inX))
	offOutX     = field(unsafe.Offsetof(nativeState{}.outX))
	offInFlags  = field(unsafe.Offsetof(nativeState{}.inFlags))
	offOutFlags = field(unsafe.Offsetof(nativeState{}.outFlags))
	offTaken    = field(unsafe.Offsetof(nativeState{}.taken))
	offGoStack  = field(unsafe.Offsetof(nativeState{}.goStack))
)

// ripMem appends op (with REX.W) with register r and the operand at offset off,
// to be placed at offset at.
func ripMem(b []byte, at int, op byte, r Reg64, off int) []byte {
	b = append(b, 0x48|byte(r>>3)<<2, op, 0x05|byte(r&7)<<3)
	return append32(b, uint32(off-(at+len(b)+4)))
}

// ripXMM appends movups between SSE register x and offset off: op 10 loads, 11
// stores.
func ripXMM(b []byte, at int, op byte, x Reg64, off int) []byte {
	b = append(b, 0x40|byte(x>>3)<<2, 0x0f, op, 0x05|byte(x&7)<<3)
	return append32(b, uint32(off-(at+len(b)+4)))
}

// prologue assembles the code before the instruction, and the landing pad.
func (n *native) prologue() {
	b := Assemble(func(a *Asm) {
		for _, r := range []Reg64{RBX, RBP, R14, R15} {
			a.Push(r)
		}
		a.Pushfq()
	})
	b = ripMem(b, 0, 0x89, RSP, offGoStack)
	b = ripMem(b, 0, 0x8d, RSP, offInFlags) // lea
	b = append(b, Assemble((*Asm).Popfq)...)
	for r := range Reg64(16) {
		b = ripXMM(b, 0, 0x10, r, offInX+16*int(r))
	}
	for r := range byte(8) { // movdq2q: MMX registers, too, are not what the thread has in them
		b = append(b, 0xf2, 0x0f, 0xd6, 0xc0|r<<3|r)
	}
	for r := range Reg64(16) {
		b = ripMem(b, 0, 0x8b, r, offIn+8*int(r))
	}
	n.enter = len(b)
	copy(n.mem, b)
	n.start(n.test)

	b, _ = AppendJmp(nil, n.near, n.pad)
	copy(n.mem[nearOff:], b)

	// The pad notes that it was reached: movq $1, taken(%rip).
	b = []byte{0x48, 0xc7, 0x05}
	b = append32(b, uint32(offTaken-(padOff+len(b)+8)))
	b = append32(b, 1)
	copy(n.mem[padOff:], n.epilogue(b, padOff))
}

// epilogue appends what saves the result and returns to Go.
func (n *native) epilogue(b []byte, at int) []byte {
	for r := range Reg64(16) {
		b = ripMem(b, at, 0x89, r, offOut+8*int(r))
	}
	for r := range Reg64(16) {
		b = ripXMM(b, at, 0x11, r, offOutX+16*int(r))
	}
	b = append(b, 0x66, 0x45, 0x0f, 0xef, 0xff, 0x0f, 0x77) // Go keeps X15 zero; emms
	b = ripMem(b, at, 0x8d, RSP, offOutFlags+8)
	b = append(b, Assemble((*Asm).Pushfq)...)
	b = ripMem(b, at, 0x8b, RSP, offGoStack)
	return append(b, Assemble(func(a *Asm) {
		a.Popfq()
		for _, r := range []Reg64{R15, R14, RBP, RBX} {
			a.Pop(r)
		}
		a.Ret()
	})...)
}

// start makes the prologue go to addr.
func (n *native) start(addr uint64) {
	j, _ := Jmp32(n.base+uint64(n.enter), addr)
	copy(n.mem[n.enter:], j[:])
}

// load puts the instruction in place.
func (n *native) load(code []byte) {
	n.next = len(code)
	n.place(testOff, code)
}

// place puts code and what saves the result at offset off.
func (n *native) place(off int, code []byte) {
	copy(n.mem[off:], code)
	copy(n.mem[off+len(code):], n.epilogue(nil, off+len(code)))
}

// run executes it on r and the arena, and returns the state afterwards.
func (n *native) run(r Regs) Regs {
	for k := range Reg64(16) {
		n.st.in[k] = *r.Reg(k)
	}
	n.st.inFlags, n.st.taken = r.RFLAGS, 0
	n.call()
	for k := range Reg64(16) {
		*r.Reg(k) = n.st.out[k]
	}
	r.RFLAGS = n.st.outFlags
	r.RIP = n.test + uint64(n.next) // also for a copy elsewhere
	if n.st.taken != 0 {
		r.RIP = n.pad
	}
	return r
}

// arena returns the memory that instructions may use, at base+arenaOff.
func (n *native) arena() []byte { return n.mem[arenaOff:] }
