package program

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// idleEnv implements the helpers of a program that does not run at a hit: there are
// no registers and no task, and of the guest's memory only the kernel's.
type idleEnv struct {
	bpf.NoEnv
	rt *Runtime
}

// Now implements bpf.Env.
func (e idleEnv) Now() uint64 { return e.rt.clock.time() }

// ReadKernel implements bpf.Env.
func (e idleEnv) ReadKernel(addr uint64, p []byte) error {
	if e.rt.cfg.Read == nil {
		return e.NoEnv.ReadKernel(addr, p)
	}
	return e.rt.cfg.Read(guest.GVA(addr), p)
}

// findIdle finds a program of Idle, nil if it is not there.
func (o *Object) findIdle(name string) *bpf.Program {
	for _, lp := range o.Idle {
		if lp.Name() == name {
			return lp.Program
		}
	}
	return nil
}

// Sample returns a program of the object without a place in the guest, for sampling;
// it is on the host. Only one may be made of each.
func (o *Object) Sample(name string) *Program {
	p := o.findIdle(name)
	if p == nil {
		panic("BUG: no program " + name)
	}
	s := &Program{Name: name, Place: bpf.OnHost, obj: o, prog: p, runner: o.rt.newRunner(p)}
	for _, m := range p.Maps() {
		s.rings = s.rings || m.Spec().Kind == bpf.RingBuf
	}
	return s
}

// RunSample runs a program returned by Sample, like a handler.
func (p *Program) RunSample(c *probe.Context) { p.run(c, false) }

// Run runs a program of the object without a place in the guest, on the caller's
// thread. It has its own values in per-vCPU maps, after the vCPUs' values: no other
// program changes them. Its error is a *bpf.Fault, or says that there is no such
// program. Only one call at a time may run for an object that is not closed.
func (o *Object) Run(name string) error {
	p := o.findIdle(name)
	if p == nil {
		return fmt.Errorf("run program: no program %q", name)
	}
	var ctx [bpf.ReturnSize]byte
	env := idleEnv{rt: o.rt}
	vm := bpf.NewVM(p, o.rt.cfg.CPUs)
	_, err := vm.Run(p.PutContext(ctx[:], env, &x86.Regs{}, kernelCS, kernelSS, make([]byte, bpf.EntrySize)), env)
	return err
}
