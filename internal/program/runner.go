package program

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// runner runs one program at exits.
type runner struct {
	rt    *Runtime
	prog  *bpf.Program
	lanes []*lane // by vCPU
	wake  bool    // it writes into rings, which are drained when it has
}

// lane is one vCPU's part of a runner. Its thread alone uses it; the counts may
// be read by anyone.
type lane struct {
	vm  *bpf.VM
	env env
	ctx [bpf.ReturnSize]byte

	runs, faults          atomic.Uint64
	code, slot, faultAddr atomic.Uint64 // of the latest fault
	_                     [64]byte
}

func (rt *Runtime) newRunner(p *bpf.Program) *runner {
	r := &runner{rt: rt, prog: p}
	for i := range rt.cfg.CPUs {
		l := &lane{vm: bpf.NewVM(p, i)}
		l.env.r = r
		r.lanes = append(r.lanes, l)
	}
	for _, m := range p.Maps() {
		r.wake = r.wake || m.Spec().Kind == bpf.RingBuf
	}
	return r
}

// run runs the program on a hit, on the vCPU's thread, and reports whether it
// has made the function return. It takes no lock and allocates nothing.
func (r *runner) run(c *probe.Context, entry bool) (taken bool) {
	l := r.lanes[c.CPU]
	cs, ss := uint16(kernelCS), uint16(kernelSS)
	if c.CPL != 0 {
		cs, ss = userCS, userSS
	}
	bpf.PutRegs(l.ctx[:], c.Regs, cs, ss)
	ctx := l.ctx[:bpf.RegsSize]
	if r.prog.Kind() == bpf.Kretprobe {
		ctx = l.ctx[:]
		clear(l.ctx[bpf.RegsSize+copy(l.ctx[bpf.RegsSize:], c.Data):])
	}
	l.env.c, l.env.entry, l.env.taken = c, entry, false
	add(&l.runs, 1)
	// What a program returns means nothing here, as for most kinds in Linux.
	if _, err := l.vm.Run(ctx, &l.env); err != nil {
		if f, ok := err.(*bpf.Fault); ok {
			l.code.Store(uint64(f.Code))
			l.slot.Store(uint64(f.PC))
			l.faultAddr.Store(f.Addr)
		}
		add(&l.faults, 1)
	}
	l.env.c = nil
	if r.wake {
		r.rt.drain.kick()
	}
	return l.env.taken
}

// add is for counts that only one thread writes.
func add(n *atomic.Uint64, d uint64) { n.Store(n.Load() + d) }

// last returns the latest fault, or nil.
func (r *runner) last() *bpf.Fault {
	for _, l := range r.lanes {
		if l.faults.Load() > 0 {
			return &bpf.Fault{Code: bpf.FaultCode(l.code.Load()), PC: int(l.slot.Load()), Addr: l.faultAddr.Load()}
		}
	}
	return nil
}
