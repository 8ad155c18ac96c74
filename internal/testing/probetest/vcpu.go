package probetest

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// maxSteps bounds one Call: a guest that went astray fails its test instead of
// hanging it.
const maxSteps = 50_000_000

// call is one request to run a function.
type call struct {
	fn    guest.GVA
	args  []uint64
	reply chan reply
}

type reply struct {
	value uint64
	err   error
}

// vcpu is one vCPU of the fake. Its goroutine owns everything except calls, done
// and tid.
type vcpu struct {
	f     *Fake
	id    int
	calls chan call
	up    chan struct{}
	done  chan struct{}
	tid   atomic.Int64

	regs   probe.Regs
	cpl    uint8
	cr2    guest.GVA
	halted bool
	shadow bool // no interrupt before the next instruction has run
	count  int  // instructions with IF set since the last tick
	nest   int  // calls from handlers
	err    error

	slotTicks int                 // interrupts that fell into a slot
	onTick    func(rip guest.GVA) // called before each interrupt; for tests

	x   instr // scratch
	raw [x86.MaxLen]byte
}

func newVCPU(f *Fake, id int) *vcpu {
	return &vcpu{f: f, id: id, calls: make(chan call), up: make(chan struct{}), done: make(chan struct{})}
}

// serve runs calls on a thread of its own, so that a handler can be
// distinguished from other callers.
func (v *vcpu) serve() {
	runtime.LockOSThread()
	v.tid.Store(int64(unix.Gettid()))
	close(v.up)
	defer close(v.done)
	for c := range v.calls {
		v.f.gate.RLock()
		sp := uint64(stackBase) + uint64(v.id)*stackStride + stackSize - 64
		cpl := uint8(0)
		if s, ok := v.f.img.Find(c.fn); ok && s.User {
			cpl = 3
		}
		v.regs = probe.Regs{}
		val, err := v.call(c.fn, sp, cpl, c.args)
		v.f.gate.RUnlock()
		c.reply <- reply{val, err}
	}
}

func (v *vcpu) state() probe.State { return probe.State{Regs: &v.regs, CPL: v.cpl} }

// call runs fn with args until it returns.
func (v *vcpu) call(fn guest.GVA, sp uint64, cpl uint8, args []uint64) (uint64, error) {
	sp -= 8
	if err := v.f.mem.store(guest.GVA(sp), 8, stopAddr, mode{}); err != nil {
		return 0, fmt.Errorf("call %v: %w", fn, err)
	}
	r := &v.regs
	r.RIP, r.RSP, r.RFLAGS = uint64(fn), sp, 2
	for i, n := range x86.ArgRegs {
		if i < len(args) {
			*r.Reg(n) = args[i]
		}
	}
	v.cpl, v.err, v.halted = cpl, nil, false
	for range maxSteps {
		if r.RIP == stopAddr {
			return r.RAX, nil
		}
		if v.nest == 0 && v.f.stopping.Load() != 0 {
			v.f.gate.RUnlock()
			v.f.gate.RLock()
		}
		v.interrupt()
		v.step()
		if v.halted {
			return 0, fmt.Errorf("vCPU %d halted at %#x", v.id, r.RIP)
		}
		if v.err != nil {
			return 0, fmt.Errorf("vCPU %d at %#x: %w", v.id, r.RIP, v.err)
		}
	}
	return 0, fmt.Errorf("vCPU %d: no end after %d instructions, at %#x", v.id, maxSteps, r.RIP)
}

// interrupt delivers the timer interrupt when it is due and allowed.
func (v *vcpu) interrupt() {
	if v.f.tick == 0 || v.cpl == 3 {
		return
	}
	on := v.regs.RFLAGS&fi != 0
	if on {
		v.count++
	}
	if v.shadow {
		v.shadow = false
		return
	}
	if on && v.count > v.f.tick {
		v.count = 0
		if v.f.engine.InSlot(guest.GVA(v.regs.RIP)) {
			v.slotTicks++
		}
		if v.onTick != nil {
			v.onTick(guest.GVA(v.regs.RIP))
		}
		v.push(vecTimer, 0, false)
	}
}

// step executes one instruction, or handles the trap that it is.
func (v *vcpu) step() {
	code, err := v.f.mem.fetch(guest.GVA(v.regs.RIP), v.cpl == 3, false)
	if err != nil {
		v.raise(&exception{vector: vecPF, code: 0x10, cr2: guest.GVA(v.regs.RIP)})
		return
	}
	if code[0] == x86.Int3 {
		v.verdict(v.hit(probe.Trap{Kind: probe.TrapBreakpoint}), nil)
		return
	}
	in, err := x86.Decode(code)
	if errors.Is(err, x86.ErrTruncated) { // a detour, which goes over lines
		code, _ = v.f.mem.fetch(guest.GVA(v.regs.RIP), v.cpl == 3, true)
		in, err = x86.Decode(code)
	}
	if err != nil {
		v.raise(&exception{vector: vecUD})
		return
	}
	if e := v.exec(in); e != nil {
		v.raise(e)
	}
}

// raise offers an exception to the engine, then to the guest.
func (v *vcpu) raise(e *exception) {
	t := probe.Trap{Kind: probe.TrapFault, Vector: e.vector, Code: e.code, CR2: e.cr2}
	v.verdict(v.hit(t), e)
}

// hit asks the engine about a trap, if that is seen.
func (v *vcpu) hit(t probe.Trap) probe.Verdict {
	if v.f.blind {
		return probe.Verdict{Action: probe.NotOurs}
	}
	return v.f.engine.Hit(v.id, v.state(), t)
}

// verdict carries out the engine's decision; e is the exception that it was
// asked about, or nil for a breakpoint.
func (v *vcpu) verdict(a probe.Verdict, e *exception) {
	if a.Shadow {
		v.shadow = true
	}
	switch a.Action {
	case probe.Resume:
	case probe.Inject:
		t := a.Fault
		v.deliver(&exception{vector: t.Vector, code: t.Code, cr2: t.CR2})
	case probe.StepInPlace:
		v.stepInPlace()
	default:
		if e == nil {
			v.regs.RIP++
			e = &exception{vector: vecBP}
		}
		v.deliver(e)
	}
}

// deliver delivers an exception to the guest's vector.
func (v *vcpu) deliver(e *exception) {
	hasCode := false
	switch e.vector {
	case 8, 10, 11, 12, 13, 14, 17, 21:
		hasCode = true
	}
	if e.vector == vecPF {
		v.cr2 = e.cr2
	}
	v.push(e.vector, e.code, hasCode)
}

// push builds the frame of a vector and goes there. Vectors below 32 have a
// stack of their own, according to the image's IDT. From CPL3 the processor uses
// RSP0: the timer does not tick there.
func (v *vcpu) push(vector uint8, code uint32, hasCode bool) {
	r := &v.regs
	sp := r.RSP &^ 15
	if vector < 32 {
		s, err := v.f.img.Lookup("ist_stacks")
		if err != nil {
			v.err = err
			return
		}
		sp = uint64(s.Addr) + uint64(v.id)*8192 + 8192
		if vector == 1 || vector == vecBP { // IST1; the others are IST2
			sp -= 4096
		}
	}
	cs, ss := uint64(0x08), uint64(0x10)
	if v.cpl == 3 {
		cs, ss = 0x23, 0x1b
	}
	frame := []uint64{ss, r.RSP, r.RFLAGS, cs, r.RIP}
	if hasCode {
		frame = append(frame, uint64(code))
	}
	for _, w := range frame {
		sp -= 8
		if err := v.f.mem.store(guest.GVA(sp), 8, w, mode{}); err != nil {
			v.err = fmt.Errorf("double fault: vector %d: %w", vector, err)
			return
		}
	}
	name := "gp_vectors"
	if vector == vecBP {
		name = "gp_foreign_bp" // the engine was asked already
	}
	s, err := v.f.img.Lookup(name)
	if err != nil {
		v.err = fmt.Errorf("vector %d: %w", vector, err)
		return
	}
	r.RIP = uint64(s.Addr)
	if vector != vecBP {
		r.RIP += 16 * uint64(vector)
	}
	r.RSP = sp
	r.RFLAGS &^= fi | tf
	v.cpl = 0
}

// executeOut is an instruction that leaves the guest.
func (v *vcpu) executeOut(port uint8, value uint32) {
	switch port {
	case guest.PortReport:
		v.err = fmt.Errorf("guest reports %#x: unexpected vector %d at %#x, CR2 %#x",
			value, v.f.load64("fault_vector"), v.f.load64("fault_rip"), v.f.load64("fault_cr2"))
	default:
		v.err = fmt.Errorf("out to port %#x", port)
	}
}

// stepInPlace executes the instruction under the int3 at RIP with the world
// stopped.
func (v *vcpu) stepInPlace() {
	f := v.f
	if v.nest != 0 {
		v.err = errors.New("in-place step in a call from a handler: the world cannot be stopped")
		return
	}
	f.gate.RUnlock()
	f.stops.Lock()
	f.stopping.Add(1)
	f.gate.Lock()
	f.stopping.Add(-1)
	addr := guest.GVA(v.regs.RIP)
	orig, ok := f.engine.OriginalByte(addr)
	if ok {
		// If the probe was removed while this vCPU waited, there is nothing to patch.
		ok = f.mem.patch(addr, []byte{x86.Int3}, []byte{orig}) == nil
	}
	e := v.stepOriginal()
	if ok {
		if err := f.mem.patch(addr, []byte{orig}, []byte{x86.Int3}); err != nil {
			v.err = err
		}
	}
	f.gate.Unlock()
	f.stops.Unlock()
	f.gate.RLock()
	if e != nil {
		v.raise(e)
		return
	}
	v.verdict(f.engine.NoteStep(v.id, v.state()), nil)
}

// stepOriginal executes one instruction and looks for no probe.
func (v *vcpu) stepOriginal() *exception {
	code, err := v.f.mem.fetch(guest.GVA(v.regs.RIP), v.cpl == 3, false)
	if err != nil {
		return &exception{vector: vecPF, cr2: guest.GVA(v.regs.RIP)}
	}
	in, err := x86.Decode(code)
	if err != nil {
		return &exception{vector: vecUD}
	}
	return v.exec(in)
}
