package program

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// idleEnv answers the helpers of a program that runs on no hit: there are neither
// registers nor a task, and of the guest's memory there is the kernel's.
type idleEnv struct {
	bpf.NoEnv
	rt *Runtime
}

// Now implements bpf.Env.
func (e idleEnv) Now() uint64 { return uint64(e.rt.cfg.Now()) }

// ReadKernel implements bpf.Env.
func (e idleEnv) ReadKernel(addr uint64, p []byte) error {
	if e.rt.cfg.Read == nil {
		return e.NoEnv.ReadKernel(addr, p)
	}
	return e.rt.cfg.Read(guest.GVA(addr), p)
}

// idle finds one of Idle, nil where there is none.
func (o *Object) idle(name string) *bpf.Program {
	for _, lp := range o.Idle {
		if lp.Name() == name {
			return lp.Program
		}
	}
	return nil
}

// Sample returns a program of the object that is at no place in the guest as one that Sampled
// runs; it is on the host. Only one may be made of each.
func (o *Object) Sample(name string) *Program {
	p := o.idle(name)
	if p == nil {
		panic("BUG: no program " + name)
	}
	s := &Program{Name: name, Place: bpf.OnHost, obj: o, prog: p, runner: o.rt.newRunner(p)}
	for _, m := range p.Maps() {
		s.rings = s.rings || m.Spec().Kind == bpf.RingBuf
	}
	return s
}

// Sampled runs a program that Sample has returned, as a handler does.
func (p *Program) Sampled(c *probe.Context) { p.run(c, false) }

// Run runs a program of the object that is at no place in the guest, on the caller's
// thread. Values of each vCPU it has of its own, behind theirs: nobody else changes them
// meanwhile. Its error is a *bpf.Fault, or that there is no such program.
// Only one call at a time may run for an object that is not closed.
func (o *Object) Run(name string) error {
	p := o.idle(name)
	if p == nil {
		return fmt.Errorf("run program: no program %q", name)
	}
	var ctx [bpf.ReturnSize]byte
	env := idleEnv{rt: o.rt}
	vm := bpf.NewVM(p, o.rt.cfg.CPUs)
	_, err := vm.Run(p.PutContext(ctx[:], env, &x86.Regs{}, kernelCS, kernelSS, make([]byte, bpf.EntrySize)), env)
	return err
}
