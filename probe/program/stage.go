package program

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/evbpf"
)

// blocks are a program in the guest: its code, and its memory for each vCPU. That
// memory is not reused while a task that was interrupted in the code may come back.
type blocks struct {
	rt     *Runtime
	prog   *bpf.Program
	mem    *arena
	area   bpf.Area
	stride int
	funcIP guest.GVA
	frame  *bpf.FrameAt // of the interrupted code
	chain  *probe.Chain
	cpus   int
	code   []byte
	info   *bpf.Info
	object bool           // the program is an object's
	again  func()         // restores the initial contents of maps, after a reset
	form   *guestForm     // the program's form; nil: it belongs to an object
	stages []*probe.Stage // the engine's forms of it
	faults *faults        // held for it, or nil
	walks  walksAt

	out []bool // by vCPU: retired

	mu     sync.Mutex
	base   []blockCounts // by vCPU: of earlier boots
	frozen bool          // base is the final count
	before []blockCounts // base before that
	fault  *bpf.Fault    // the latest one before
}

// lostSize is the room after the blocks for the count of hits on no vCPU.
const lostSize = 64

// machineCode is a compiled program, or why it cannot be compiled.
type machineCode struct {
	code []byte
	info *bpf.Info
	err  error

	chain *probe.Chain // of a program that walks stacks: the data for that
}

// walksAt says where the engine puts the stacks of the interrupted code: for vCPU 0,
// and how far apart. at is 0 if the program does not need them.
type walksAt struct {
	at     guest.GVA
	stride int
}

// address returns that for a vCPU.
func (w walksAt) address(cpu int) uint64 { return uint64(w.at) + uint64(cpu*w.stride) }

// compile compiles p for code of that privilege. cookie is the result of
// get_attach_cookie.
func (rt *Runtime) compile(p *bpf.Program, user bool, cookie uint64) (c machineCode) {
	// A program that breaks the compiler must not end the daemon and with it the
	// guest.
	defer func() {
		if r := recover(); r != nil {
			c = machineCode{err: &bpf.HostOnlyError{Index: -1, Why: fmt.Sprintf("the compiler has a defect (%v at %s)", r, panicPlace())}}
		}
	}()
	walked := false
	if walks(p) {
		if c.chain, c.err = rt.stacksOf(p, user); c.err != nil {
			return c
		}
		walked = c.chain == nil
	}
	l := rt.layout(user, c.chain)
	l.Cookie, l.Walked = cookie, walked
	c.code, c.info, c.err = bpf.Compile(p, l)
	return c
}

// panicPlace returns where the panic began that its caller has recovered.
func panicPlace() string {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "runtime.") || !more {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
	}
}

// compile compiles the programs that can run in the guest, one per processor at a
// time. Programs that differ in their names only are compiled once.
func (o *Object) compile() {
	var all sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	first := o.firstOfEach()
	for p, of := range first {
		if p != of {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			p.made = o.rt.compile(p.prog, p.user, 0)
			<-slots
		})
	}
	all.Wait()
	for p, of := range first {
		p.made = of.made
	}
}

// firstOfEach returns, for each program that can run in the guest, the first one that has the same machine code.
func (o *Object) firstOfEach() map[*Program]*Program {
	type code struct {
		insns bpf.Instructions
		user  bool
	}
	first, like := map[*Program]*Program{}, map[code]*Program{}
	for _, p := range o.Programs {
		if p.Place != bpf.InGuest {
			continue
		}
		k := code{p.prog.Instructions(), p.user}
		if q := like[k]; q != nil && slices.Equal(q.prog.Maps(), p.prog.Maps()) {
			first[p] = q
			continue
		}
		first[p], like[k] = p, p
	}
	return first
}

// stage makes the blocks of p, for code of that privilege. object tells a program of an
// object from that of a definition: see guestClock.
func (rt *Runtime) stage(p *bpf.Program, made machineCode, funcIP guest.GVA, user, object bool, again func()) (*blocks, error) {
	code, info, err := made.code, made.info, made.err
	if err != nil {
		return nil, err
	}
	clock, err := rt.clock.getFor(object)
	if err != nil {
		if info.ContextReads>>(bpf.RegsSize/8)&1 != 0 {
			return nil, err // the time of the entry
		}
		clock = bpf.Clock{} // checkGuest has checked whether it matters otherwise
	}
	b := &blocks{rt: rt, prog: p, mem: rt.arena(user), stride: info.BlockSize, funcIP: funcIP, chain: made.chain, cpus: rt.cfg.CPUs, code: code, info: info, again: again, object: object}
	b.base, b.out = make([]blockCounts, b.cpus), make([]bool, b.cpus)
	if b.frame, err = rt.frame(p, b.chain, funcIP); err != nil {
		return nil, err
	}
	if b.area, err = b.mem.Alloc(b.stride*b.cpus + lostSize); err != nil {
		return nil, err
	}
	if err := b.hold(); err != nil {
		b.mem.Free(b.area)
		return nil, err
	}
	b.init(clock)
	rt.mu.Lock()
	rt.staged[b] = true
	rt.mu.Unlock()
	return b, nil
}

// hold has the engine do what the program needs of it in the guest: walk stacks before
// it runs, and resume its faults.
func (b *blocks) hold() (err error) {
	e := b.rt.cfg.Engine
	if b.info.Walk > 0 {
		if b.walks.at, b.walks.stride, err = e.HoldWalks(b.funcIP); err != nil {
			return err
		}
	}
	if p := b.rt.profile(); p != nil && p.Faults != nil && len(b.info.Fixups) > 0 && !b.mem.user {
		if err := b.rt.faults.hold(e, p.Faults); err != nil {
			b.releaseWalks()
			return err
		}
		b.faults = &b.rt.faults
	}
	return nil
}

// releaseWalks undoes the hold for the stacks.
func (b *blocks) releaseWalks() {
	if b.walks.at != 0 {
		b.rt.cfg.Engine.ReleaseWalks()
	}
}

// areaOf returns the block of one vCPU.
func (b *blocks) areaOf(cpu int) bpf.Area {
	at := cpu * b.stride
	return bpf.Area{Bytes: b.area.Bytes[at : at+b.stride], Addr: b.area.Addr + uint64(at)}
}

// init writes new blocks.
func (b *blocks) init(clock bpf.Clock) {
	for i := range b.cpus {
		b.prog.InitBlock(b.areaOf(i), bpf.BlockConfig{CPU: i, FuncIP: uint64(b.funcIP), Frame: b.frame, Walk: b.walks.address(i), Clock: clock})
	}
	if b.again != nil {
		b.again()
	}
	b.mu.Lock()
	b.frozen = false
	if b.form != nil {
		b.form.reopen()
	}
	b.mu.Unlock()
}

// probe returns the engine's form of it. If filters is set, runs that return 0 are
// hits that were filtered.
func (b *blocks) probe(filters bool) *probe.Stage {
	s := &probe.Stage{
		Code: b.code, NoStrings: true, Aligned: b.info.Aligned, Stack: b.info.MachineStack, Reads: b.info.ContextReads, Walk: b.info.Walk,
		Block: guest.GVA(b.area.Addr), Stride: uint64(b.stride), Lost: guest.GVA(b.area.Addr) + guest.GVA(b.stride*b.cpus),
		Counts: func(cpu int) (handled, filtered, missed uint64) {
			c := b.counts(cpu)
			handled = c.runs()
			if filters {
				filtered = c.answers[0]
				handled -= filtered
			}
			return handled, filtered, c.missed
		},
	}
	s.Placed = func(addr guest.GVA) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.funcIP = addr
		b.frame, _ = b.rt.frame(b.prog, b.chain, addr) // without, the block says that it knows no stack
		for cpu := range b.cpus {
			bpf.PlaceBlock(b.areaOf(cpu), uint64(addr), b.frame)
		}
	}
	for _, f := range b.info.Fixups {
		s.Fixups = append(s.Fixups, probe.Fixup{Fault: f.Fault, Resume: f.Resume})
	}
	b.stages = append(b.stages, s)
	return s
}

// blockCounts are the counts of one vCPU's block; hits on no vCPU are among the
// missed hits of vCPU 0.
type blockCounts struct {
	answers        [4]uint64 // runs that have ended, by result
	failed, missed uint64
}

// runs returns how many runs have ended.
func (c *blockCounts) runs() uint64 {
	return c.answers[0] + c.answers[1] + c.answers[2] + c.answers[3] + c.failed
}

// counts returns the counts of one vCPU over all boots.
func (b *blocks) counts(cpu int) blockCounts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read(cpu)
}

// read is counts for callers that hold mu.
func (b *blocks) read(cpu int) blockCounts {
	c := b.base[cpu]
	if b.frozen {
		return c
	}
	now := b.areaOf(cpu)
	for i, n := range bpf.BlockAnswers(now) {
		c.answers[i] += n
	}
	_, failed, missed, _ := bpf.BlockStats(now)
	if cpu == 0 {
		missed += binary.LittleEndian.Uint64(b.area.Bytes[b.stride*b.cpus:])
	}
	c.failed, c.missed = c.failed+failed, c.missed+missed
	return c
}

// freeze keeps the current counts, because their memory is about to be lost. A run
// that has not ended does not count as handled, unless its record is already out: it
// counts as missed.
func (b *blocks) freeze() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen {
		return
	}
	b.before = slices.Clone(b.base)
	for i := range b.cpus {
		if _, failed, _, last := bpf.BlockStats(b.areaOf(i)); failed > 0 {
			b.fault = &last
		}
		c, running := b.read(i), b.countRunning(i)
		if b.form != nil {
			n := b.form.settle(i, c.answers[evbpf.Recorded], running)
			c.answers[evbpf.Recorded] += n
			running -= n
		}
		c.missed += running
		b.base[i] = c
	}
	b.frozen = true
}

// thaw undoes freeze, because the memory was not lost after all. If it was, the counts
// stay as they are.
func (b *blocks) thaw() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.frozen || !slices.ContainsFunc(b.area.Bytes, func(c byte) bool { return c != 0 }) {
		return
	}
	b.base, b.frozen = b.before, false
	if b.form != nil {
		b.form.reopen()
	}
}

// countRunning returns how many runs of a vCPU have begun and not ended.
func (b *blocks) countRunning(cpu int) uint64 {
	began, ended, _, _ := bpf.BlockStats(b.areaOf(cpu))
	for _, n := range bpf.BlockAnswers(b.areaOf(cpu)) {
		ended += n
	}
	if began < ended {
		return 0 // the guest's numbers are wrong
	}
	return began - ended
}

// stats returns the counts of all vCPUs, as reported by the guest.
func (b *blocks) stats() (s Stats) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.fault
	for i := range b.cpus {
		c := b.read(i)
		s.Runs, s.Faults, s.Missed = s.Runs+c.runs(), s.Faults+c.failed, s.Missed+c.missed
		if !b.frozen {
			if _, failed, _, l := bpf.BlockStats(b.areaOf(i)); failed > 0 {
				last = &l
			}
		}
	}
	s.InGuest = s.Runs
	s.Last = last
	return s
}

// settleTime is how long to wait for runs that are under way when their probe is
// gone: a run that is not preempted ends sooner.
const settleTime = 5 * time.Millisecond

// retire keeps code from ever running again, after its probes were removed, and
// finalizes its counts; just before, with no vCPU running, it calls last. For each it
// calls done when no run is under way any more: then its maps can be freed. A task
// that is still in a detour finds its block taken, and continues without a run; the
// blocks are freed when the engine knows that no task is there. Without a way to stop
// the vCPUs nothing is certain.
func (rt *Runtime) retire(bs []*blocks, last func(), done func(i int)) {
	idle := rt.end(bs, settleTime, last)
	for i, b := range bs {
		if idle[i] {
			done(i)
			b.releaseFaults()
		}
		if rt.cfg.Engine == nil {
			continue
		}
		// The error is that the engine is closed, and the guest with it.
		_ = rt.cfg.Engine.NotifyUnused(func() {
			b.mem.Free(b.area)
			b.releaseWalks()
			if !idle[i] {
				done(i)
				go b.releaseFaults() // the engine calls this, and must not be called
			}
		}, b.stages...)
	}
}

// releaseFaults undoes the hold for the faults of b.
func (b *blocks) releaseFaults() {
	if b.faults != nil {
		b.faults.release(b.rt.cfg.Engine)
	}
}

// end ends the code of bs for retire, and reports for each whether no run is under
// way. It waits for running ones at most the given time.
func (rt *Runtime) end(bs []*blocks, wait time.Duration, last func()) (idle []bool) {
	idle = make([]bool, len(bs))
	final := func() {
		last()
		rt.mu.Lock()
		defer rt.mu.Unlock()
		for _, b := range bs {
			b.freeze()
			delete(rt.staged, b)
		}
	}
	if rt.cfg.Stop == nil || len(bs) == 0 {
		final()
		return idle
	}
	try := func(end bool) error {
		return rt.cfg.Stop(func() error {
			for i, b := range bs {
				idle[i] = b.retire()
			}
			if end = end || !slices.Contains(idle, false); end {
				final()
			}
			return nil
		})
	}
	began, pause := time.Now(), settleTime/50
	var err error
	for last := wait <= 0; ; last = time.Since(began) >= wait {
		if err = try(last); err != nil || last || !slices.Contains(idle, false) {
			break
		}
		for time.Since(began) < wait && slices.ContainsFunc(bs, (*blocks).busy) {
			time.Sleep(settleTime / 50)
		}
		// A run may be at its first instructions, before it is counted, or another task may have begun
		// one since: the counts alone do not say that none is under way.
		time.Sleep(pause)
		pause = min(2*pause, settleTime)
	}
	if err != nil {
		clear(idle)
		final()
	}
	return idle
}

// holds is the most times that Hold stops the vCPUs.
const holds = 8

// Hold runs f while none of the object's programs makes progress: with no vCPU in
// guest mode and no handler under way. idle says that no run is under way in the
// guest either, which soon becomes true if runs are short.
func (o *Object) Hold(f func(idle bool)) {
	done, bs := false, o.guestBlocks()
	for try := 1; !done && try <= holds && o.rt.cfg.Stop != nil; try++ {
		err := o.rt.cfg.Stop(func() error {
			if idle := !slices.ContainsFunc(bs, (*blocks).busy); idle || try == holds {
				done = true
				f(idle)
			}
			return nil
		})
		if err != nil {
			break
		}
		if !done {
			time.Sleep(settleTime / 50)
		}
	}
	if !done { // there is nothing to stop any more
		f(true)
	}
}

// retire retires the blocks of all vCPUs in which no run is under way, and reports
// whether these are all. No vCPU runs.
func (b *blocks) retire() bool {
	for cpu, out := range b.out {
		b.out[cpu] = out || b.info.Retire(b.areaOf(cpu))
	}
	return !slices.Contains(b.out, false)
}

// busy reports whether a run is under way, according to the counts.
func (b *blocks) busy() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen {
		return false
	}
	for cpu := range b.cpus {
		if b.countRunning(cpu) > 0 {
			return true
		}
	}
	return false
}
