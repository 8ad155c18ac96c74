//go:build linux && amd64

package bpf

import (
	"fmt"
	"syscall"
	"testing"
	"unsafe"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// native executes compiled programs on this CPU. One mapping holds the entry code,
// its stack, the compiled code, and everything allocated from it as a Memory: the
// addresses in compiled code are this process's.
//
//	0x0000  entry code
//	0x1000  nativeState
//	0x2000  stack
//	0x4000  what Alloc gives out, code included
type native struct {
	mem  []byte
	st   *nativeState
	next int
	call func()
	code uintptr // what call points to
}

type nativeState struct {
	in, out [16]uint64 // registers in the CPU's numbering; out[RSP] is not used
	target  uint64
	goStack uint64
}

const (
	nativeStateOff = 0x1000
	nativeStackOff = 0x2000
	nativeStackTop = 0x4000
	nativeSize     = 64 << 20
)

// newNative maps and assembles. SAFETY: the mapping is executable memory that belongs
// to this native until the test ends; call is a Go function value, a pointer to a
// word that holds the code's address. The entry code saves the registers that Go's
// ABI keeps (RSP, RBP, R14, R15) and never blocks. A signal during the call runs on
// the thread's signal stack, so RSP may be anything.
func newNative(t testing.TB) *native {
	mem, err := syscall.Mmap(-1, 0, nativeSize, syscall.PROT_READ|syscall.PROT_WRITE|syscall.PROT_EXEC,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	n := &native{mem: mem}
	n.Reset()
	n.code = uintptr(unsafe.Pointer(&mem[0]))
	n.st = (*nativeState)(unsafe.Pointer(&mem[nativeStateOff]))
	p := &n.code
	n.call = *(*func())(unsafe.Pointer(&p))
	n.entry()
	return n
}

// Reset implements Runner.
func (n *native) Reset() { n.next = nativeStackTop }

// addr returns the address of a byte of the mapping.
func (n *native) addr(off int) uint64 { return uint64(uintptr(unsafe.Pointer(&n.mem[off]))) }

// Alloc implements Memory.
func (n *native) Alloc(size int) (Area, error) {
	off := n.next
	if off+size > len(n.mem) {
		return Area{}, fmt.Errorf("out of memory")
	}
	n.next = roundUp(off+size, 64)
	b := n.mem[off : off+size : off+size]
	clear(b)
	return Area{Bytes: b, Addr: n.addr(off)}, nil
}

// Free implements Memory.
func (n *native) Free(Area) {}

// entry assembles: save what Go needs, load all registers, call the target,
// save all registers, return. Everything is at addresses that are known.
func (n *native) entry() {
	field := func(off uintptr) imm { return imm(n.addr(nativeStateOff + int(off))) }
	in, out := field(unsafe.Offsetof(nativeState{}.in)), field(unsafe.Offsetof(nativeState{}.out))
	goStack, target := field(unsafe.Offsetof(nativeState{}.goStack)), field(unsafe.Offsetof(nativeState{}.target))
	kept := []reg64{x86.RBX, x86.RBP, x86.R12, x86.R13, x86.R14, x86.R15}
	all := func(f func(r reg64, at x86.Mem)) {
		for r := reg64(0); r < 16; r++ {
			if r != x86.RAX && r != x86.RSP {
				f(r, x86.At(x86.RAX, 8*int(r)))
			}
		}
	}
	var a x86.Asm
	for _, r := range kept {
		a.Push(r)
	}
	a.Mov(8, x86.RAX, goStack)
	a.Mov(8, x86.At(x86.RAX, 0), x86.RSP)
	a.Mov(8, x86.RSP, imm(n.addr(nativeStackTop)))
	a.Mov(8, x86.RAX, target)
	a.Push(x86.At(x86.RAX, 0))
	a.Lea(8, x86.RSP, x86.At(x86.RSP, 8))
	a.Mov(8, x86.RAX, in)
	all(func(r reg64, at x86.Mem) { a.Mov(8, r, at) })
	a.Mov(8, x86.RAX, x86.At(x86.RAX, 8*int(x86.RAX)))
	a.CallAt(x86.At(x86.RSP, -8))
	a.Push(x86.RAX)
	a.Mov(8, x86.RAX, out)
	a.Pop(x86.At(x86.RAX, 8*int(x86.RAX)))
	all(func(r reg64, at x86.Mem) { a.Mov(8, at, r) })
	a.Mov(8, x86.At(x86.RAX, 8*int(x86.RSP)), x86.RSP)
	a.Mov(8, x86.RAX, goStack)
	a.Mov(8, x86.RSP, x86.At(x86.RAX, 0))
	for i := len(kept) - 1; i >= 0; i-- {
		a.Pop(kept[i])
	}
	a.Ret()
	copy(n.mem, a.Code())
}

// compiled is a program in place, with a run block and a context.
type compiled struct {
	n     *native
	p     *Program
	info  *Info
	code  Area
	block Area
	ctx   Area
}

// load compiles p and puts it in place for vCPU cpu. Contexts are at most
// maxCtx bytes.
func (n *native) load(p *Program, l Layout, c BlockConfig, maxCtx int) (*compiled, error) {
	code, info, err := Compile(p, l)
	if err != nil {
		return nil, err
	}
	out := &compiled{n: n, p: p, info: info}
	for _, x := range []struct {
		a    *Area
		size int
	}{{&out.code, len(code)}, {&out.block, info.BlockSize}, {&out.ctx, maxCtx}} {
		if *x.a, err = n.Alloc(x.size); err != nil {
			return nil, err
		}
	}
	copy(out.code.Bytes, code)
	p.InitBlock(out.block, c)
	return out, nil
}

// run calls the code once. It returns an error when a register was not kept.
func (c *compiled) run(ctx []byte) (uint64, error) {
	copy(c.ctx.Bytes, ctx)
	_, before, _, _ := BlockStats(c.block)
	r0, err := c.n.invoke(c.code.Addr, c.ctx.Addr, c.block.Addr, uint64(len(ctx)))
	if err != nil {
		return 0, err
	}
	copy(ctx, c.ctx.Bytes)
	if _, failed, _, last := BlockStats(c.block); failed != before {
		return 0, &last
	}
	return r0, nil
}

// invoke calls code at an address.
func (n *native) invoke(code, ctx, block, length uint64) (uint64, error) {
	st := n.st
	for r := range st.in {
		st.in[r] = 0xdead0000_00000000 | uint64(r)
	}
	st.in[x86.RDI], st.in[x86.RSI], st.in[x86.RDX] = ctx, block, length
	st.target = code
	n.call()
	for r := range st.in {
		want := st.in[r]
		if reg64(r) == x86.RSP {
			want = n.addr(0) + nativeStackTop
		}
		if reg64(r) != x86.RAX && st.out[r] != want {
			return 0, fmt.Errorf("register %d is %#x afterwards, was %#x", r, st.out[r], want)
		}
	}
	return st.out[x86.RAX], nil
}

// Load implements Runner.
func (n *native) Load(code []byte) (func(ctx, block, length uint64) (uint64, error), error) {
	a, err := n.Alloc(len(code))
	if err != nil {
		return nil, err
	}
	copy(a.Bytes, code)
	return func(ctx, block, length uint64) (uint64, error) { return n.invoke(a.Addr, ctx, block, length) }, nil
}

// lowMemory returns memory below 2 GiB, whose address is a displacement.
func lowMemory(t *testing.T) (Area, error) {
	b, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_32BIT)
	if err != nil {
		return Area{}, err
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return Area{Bytes: b, Addr: uint64(uintptr(unsafe.Pointer(&b[0])))}, nil
}
