package program

import (
	"encoding/binary"
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Selectors of the table that a guest is booted with, by privilege level.
const (
	kernelCS, kernelSS = 0x08, 0x10
	userCS, userSS     = 0x23, 0x1b
)

// maxSkip and maxPCs bound a stack walk for get_stack: its flags can skip 255
// frames, and it returns 127 at most.
const (
	maxSkip = 255
	maxPCs  = 127
)

// env answers the helpers of a program that runs at an exit. It belongs to one
// vCPU's thread, and is about one hit at a time.
type env struct {
	r     *runner
	c     *probe.Context
	entry bool // the probe is at a function's first instruction: it can be left from here
	taken bool // override_return was called

	word [8]byte
	task [guest.ProfileCommSize]byte
	pcs  [maxSkip + maxPCs]guest.GVA
}

var _ bpf.Env = (*env)(nil)

// Now implements bpf.Env.
func (e *env) Now() uint64 { return uint64(e.r.rt.cfg.Now()) }

// field reads part of the structure that the guest's profile leads to.
func (e *env) field(off int32, b []byte) bool {
	info := guest.GVA(e.c.Regs.RSP & e.r.rt.cfg.Profile.StackMask)
	return e.c.Read(info+guest.GVA(off), b) == nil
}

// known reports whether the interrupted stack is that of a task.
func (e *env) known() bool {
	p := e.r.rt.cfg.Profile
	return p != nil && guest.GVA(e.c.Regs.RSP&p.StackMask).Canonical() && e.field(p.MagicOff, e.word[:]) &&
		binary.LittleEndian.Uint64(e.word[:]) == p.StackMagic
}

// PIDTGID implements bpf.Env. Without a task it returns 0.
func (e *env) PIDTGID() uint64 {
	p := e.r.rt.cfg.Profile
	if !e.known() || !e.field(p.TGIDOff, e.word[:4]) {
		return 0
	}
	tgid := binary.LittleEndian.Uint32(e.word[:])
	if !e.field(p.PIDOff, e.word[:4]) {
		return 0
	}
	return uint64(tgid)<<32 | uint64(binary.LittleEndian.Uint32(e.word[:]))
}

// Comm implements bpf.Env. Without a task the name is empty.
func (e *env) Comm(b *[16]byte) {
	clear(b[:])
	if e.known() && e.field(e.r.rt.cfg.Profile.CommOff, e.task[:]) {
		copy(b[:], e.task[:])
	}
}

// ReadKernel implements bpf.Env.
func (e *env) ReadKernel(addr uint64, p []byte) error { return e.c.Read(guest.GVA(addr), p) }

// ReadUser implements bpf.Env.
func (e *env) ReadUser(addr uint64, p []byte) error { return e.c.Read(guest.GVA(addr), p) }

var errOtherStack = errors.New("the interrupted code has another stack")

// Stack implements bpf.Env: there is only the stack of the interrupted code.
func (e *env) Stack(pcs []uint64, skip int, user bool) (int, error) {
	if user != (e.c.CPL == 3) {
		return 0, errOtherStack
	}
	n := e.c.Stack(e.pcs[:min(skip+len(pcs), len(e.pcs))])
	if n < skip {
		return 0, nil
	}
	for i, pc := range e.pcs[skip:n] {
		pcs[i] = uint64(pc)
	}
	return n - skip, nil
}

// FuncIP implements bpf.Env.
func (e *env) FuncIP() uint64 { return uint64(e.c.Addr) }

var errNotEntry = errors.New("only a program at a function's entry can make it return")

// OverrideReturn implements bpf.Env: the function is left before its first
// instruction, when the program has ended.
func (e *env) OverrideReturn(v uint64) error {
	if !e.entry || e.c.Read(guest.GVA(e.c.Regs.RSP), e.word[:]) != nil {
		return errNotEntry
	}
	e.taken = true
	e.c.Regs.RAX = v
	e.c.Regs.RIP = binary.LittleEndian.Uint64(e.word[:])
	e.c.Regs.RSP += 8
	return nil
}

// Trace implements bpf.Env.
func (e *env) Trace(msg []byte) {
	if t := e.r.rt.cfg.Trace; t != nil {
		t(e.r.prog.Name(), e.c.CPU, msg)
	}
}
