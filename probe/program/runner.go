package program

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/evbpf"
)

// lane is the environment of a vCPU's thread for running programs at exits, one at a
// time: a program causes no hits.
type lane struct {
	vm  *bpf.VM
	env *env
	ctx [bpf.ReturnSize]byte
}

func newLanes(rt *Runtime) (lanes []*lane) {
	for i := range rt.cfg.CPUs {
		lanes = append(lanes, &lane{vm: bpf.NewVM(nil, i), env: newEnv(rt)})
	}
	return lanes
}

// runner runs one program at exits.
type runner struct {
	rt    *Runtime
	prog  *bpf.Program
	of    *Program // nil: it belongs to a definition
	stack *[]int   // see stackArgs
	cells []cell

	to     bpf.RingWriter // of a definition: receives its records
	cookie uint64         // the mark of the records
	gate   evbpf.Gate     // the gate of the records
}

// cell has the counts of one program on one vCPU, written only by that vCPU's thread. It fills a cache
// line.
type cell struct {
	runs, faults     atomic.Uint64
	answers          [4]atomic.Uint64 // runs without a fault, by the low bits of their results
	fault, faultAddr atomic.Uint64    // the latest fault: its code and, shifted by 8, its slot; its address
}

func (rt *Runtime) newRunner(p *bpf.Program) *runner {
	return &runner{rt: rt, prog: p, cells: make([]cell, rt.cfg.CPUs)}
}

// stackArgs returns, for a definition of returns, the arguments that were kept from the entry's stack.
func (r *runner) stackArgs() []int {
	if r.stack == nil {
		return nil
	}
	return *r.stack
}

// run runs the program on a hit, on the vCPU's thread. It returns the program's
// result, 0 after a fault, and whether that has made the function return, which only
// a program at a function's entry can do. It takes no lock and allocates nothing.
func (r *runner) run(c *probe.Context, entry bool) (answer uint64, taken bool) {
	l, k := r.rt.lanes[c.CPU], &r.cells[c.CPU]
	cs, ss := uint16(kernelCS), uint16(kernelSS)
	if c.CPL != 0 {
		cs, ss = userCS, userSS
	}
	l.env.begin(r, c, entry)
	ctx := r.prog.PutContext(l.ctx[:], l.env, c.Regs, cs, ss, c.Data)
	if r.of != nil && r.of.Record != nil {
		if r.prog.Kind() == bpf.Event {
			_, ctx = r.of.Record(c)
		} else {
			l.env.recordAt = r.of.RecordAt(c.CPU)
			binary.LittleEndian.PutUint64(ctx[x86.PtOrigAX:], l.env.recordAt)
		}
	}
	add(&k.runs, 1)
	l.vm.Use(r.prog)
	answer, err := l.vm.Run(ctx, l.env)
	l.vm.Leave()
	if err != nil {
		if f, ok := err.(*bpf.Fault); ok {
			k.fault.Store(uint64(f.PC)<<8 | uint64(f.Code))
			k.faultAddr.Store(f.Addr)
		}
		add(&k.faults, 1)
	} else {
		add(&k.answers[answer&3], 1)
	}
	return answer, l.env.end()
}

// add is for counts that only one thread writes.
func add(n *atomic.Uint64, d uint64) { n.Store(n.Load() + d) }

// countAnswers returns how many runs have returned that answer.
func (r *runner) countAnswers(answer int) (n uint64) {
	for i := range r.cells {
		n += r.cells[i].answers[answer].Load()
	}
	return n
}

func (r *runner) stats() (s Stats) {
	for i := range r.cells {
		k := &r.cells[i]
		s.Runs += k.runs.Load()
		if n := k.faults.Load(); n > 0 {
			s.Faults += n
			at := k.fault.Load()
			s.Last = &bpf.Fault{Code: bpf.FaultCode(at & 0xff), PC: int(at >> 8), Addr: k.faultAddr.Load()}
		}
	}
	return s
}
