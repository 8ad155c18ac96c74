package program

import (
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// blocks are a program in the guest: its code, and the memory that it runs in on
// each vCPU. That memory is never used for anything else: a task that was
// interrupted in a detour may come back at any time.
type blocks struct {
	prog   *bpf.Program
	area   bpf.Area
	stride int
	funcIP guest.GVA
	cpus   int
	code   []byte
	info   *bpf.Info
	again  func() // puts maps back to their first contents, behind a reset
}

// lostSize is the room behind the blocks for the count of hits on no vCPU.
const lostSize = 64

// busyWord is where a block says that a run is going on (docs/programs.md).
const busyWord = 0

// stage compiles p and makes its blocks.
func (rt *Runtime) stage(p *bpf.Program, funcIP guest.GVA, again func()) (*blocks, error) {
	clock, err := rt.clock()
	if err != nil {
		clock = bpf.Clock{} // where has looked whether it matters
	}
	code, info, err := bpf.Compile(p, rt.layout())
	if err != nil {
		return nil, err
	}
	b := &blocks{prog: p, stride: (p.BlockSize() + 63) &^ 63, funcIP: funcIP, cpus: rt.cfg.CPUs, code: code, info: info, again: again}
	if b.area, err = rt.mem.Alloc(b.stride*b.cpus + lostSize); err != nil {
		return nil, err
	}
	b.init(clock)
	rt.mu.Lock()
	rt.staged[b] = true
	rt.mu.Unlock()
	return b, nil
}

// of is the block of one vCPU.
func (b *blocks) of(cpu int) bpf.Area {
	at := cpu * b.stride
	return bpf.Area{Bytes: b.area.Bytes[at : at+b.stride], Addr: b.area.Addr + uint64(at)}
}

// init writes fresh blocks.
func (b *blocks) init(clock bpf.Clock) {
	for i := range b.cpus {
		b.prog.InitBlock(b.of(i), bpf.BlockConfig{CPU: i, FuncIP: uint64(b.funcIP), Clock: clock})
	}
	if b.again != nil {
		b.again()
	}
}

// probe returns the form in which the engine takes it. Filtered returns how many
// of the runs on a vCPU a filter ended; it may be nil.
func (b *blocks) probe(filtered func(cpu int) uint64) *probe.Stage {
	s := &probe.Stage{
		Code: b.code, Stack: b.info.MachineStack, Reads: b.info.ContextReads,
		Block: guest.GVA(b.area.Addr), Stride: uint64(b.stride), Lost: guest.GVA(b.area.Addr) + guest.GVA(b.stride*b.cpus),
		Counts: func(cpu int) (hits, handled, dropped, missed uint64) {
			runs, _, missed, _ := bpf.BlockStats(b.of(cpu))
			if filtered != nil {
				dropped = min(filtered(cpu), runs)
			}
			if cpu == 0 {
				missed += b.lost()
			}
			return runs + missed, runs - dropped, dropped, missed
		},
	}
	for _, f := range b.info.Fixups {
		s.Fixups = append(s.Fixups, probe.Fixup{Fault: f.Fault, Resume: f.Resume})
	}
	return s
}

// lost is the number of hits on a stack that shows no vCPU, as the guest says.
func (b *blocks) lost() uint64 {
	return binary.LittleEndian.Uint64(b.area.Bytes[b.stride*b.cpus:])
}

// stats returns the counts of all vCPUs, as the guest says.
func (b *blocks) stats() (runs, failed, missed uint64, last *bpf.Fault) {
	for i := range b.cpus {
		r, f, m, l := bpf.BlockStats(b.of(i))
		runs, failed, missed = runs+r, failed+f, missed+m
		if f > 0 {
			last = &l
		}
	}
	return runs, failed, missed + b.lost(), last
}

// retire keeps code from ever running again, behind the end of its probes, and
// says of each whether no run is under way: then its maps can be given back. A task
// that is still in a detour finds its block taken, and goes on without a run.
// Without a way to stop the vCPUs nothing is certain.
func (rt *Runtime) retire(bs ...*blocks) (idle []bool) {
	idle = make([]bool, len(bs))
	rt.mu.Lock()
	for _, b := range bs {
		if rt.staged[b] {
			rt.retired = append(rt.retired, b.area)
		}
		delete(rt.staged, b)
	}
	rt.mu.Unlock()
	if rt.cfg.Stop == nil || len(bs) == 0 {
		return idle
	}
	err := rt.cfg.Stop(func() error {
		for i, b := range bs {
			idle[i] = true
			for cpu := range b.cpus {
				word := b.of(cpu).Bytes[busyWord : busyWord+4]
				idle[i] = idle[i] && word[0] == 0
				copy(word, []byte{1, 0, 0, 0})
			}
		}
		return nil
	})
	if err != nil {
		clear(idle)
	}
	return idle
}
