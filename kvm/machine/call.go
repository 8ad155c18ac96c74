package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// callTimeout is how long Call waits when its context has no deadline.
const callTimeout = 5 * time.Second

// maxCallArgs is the number of integer registers of the System V ABI.
const maxCallArgs = 6

// opHlt is the instruction to which a called function returns.
const opHlt = 0xf4

// anyCPU means the first vCPU that reaches a safe point.
const anyCPU = -1

// call is one function of the guest that the host runs at a safe point.
type call struct {
	fn    guest.GVA
	args  [maxCallArgs]uint64
	cpu   int        // the vCPU, or anyCPU
	saved probe.Regs // of the safe point
	ret   uint64
	err   error
	done  chan struct{}
}

// guestCalls are the host's calls of the guest's functions.
type guestCalls struct {
	callQueue
	m *Machine

	stubMu  sync.Mutex
	planted guest.GVA // where called functions return to; 0: not written yet
}

// callQueue holds the calls that wait for a safe point, oldest first; guarded
// by Machine.mu.
type callQueue struct {
	waiting []*call
	stub    guest.GVA // hlt in the kernel's exec area
	service bool      // a caller uses the guest's call service
}

// next returns the index of the oldest call that vCPU cpu may run, or -1.
func (q *callQueue) next(cpu int) int {
	for i, c := range q.waiting {
		if c.cpu == cpu || c.cpu == anyCPU {
			return i
		}
	}
	return -1
}

// Call runs the kernel function of the guest at fn with up to six integer
// arguments, and returns its result. In a Linux guest a kernel thread runs the
// function from a workqueue, so it may sleep. Otherwise Call uses the guest's
// own call service (symbol gp_call_mailbox) if there is one, else a vCPU that is
// at a safe point: hlt with interrupts off. It waits until ctx ends, or 5 s when
// ctx has no deadline.
//
// A call is never cut short. If the time is over before the call begins, it is
// withdrawn (ErrNoSafePoint). If it has begun, it continues and its result is
// dropped (ErrCallRunning). The call service takes one call at a time
// (ErrCallBusy). Every error is a *CallError.
func (m *Machine) Call(ctx context.Context, fn guest.GVA, args ...uint64) (uint64, error) {
	fail := func(err error) (uint64, error) { return 0, &CallError{Fn: fn, Err: err} }
	img := m.Image()
	switch {
	case len(args) > maxCallArgs:
		return fail(fmt.Errorf("%d arguments, at most %d", len(args), maxCallArgs))
	case !img.IsText(fn):
		return fail(errors.New("there is no code of the guest"))
	case img.IsUserText(fn):
		return fail(errors.New("it is user code; only kernel functions can be called"))
	case m.inHandler():
		return fail(fmt.Errorf("%w; use Context.Call", probe.ErrInHandler))
	}
	g, linux := m.payload().(*linuxGuest)
	if _, ok := ctx.Deadline(); !ok && !linux {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	var ret uint64
	var err error
	if linux {
		ret, err = g.callThread(ctx, m, fn, args)
	} else if box, e := img.Lookup(guest.SymCallMailbox); e == nil {
		ret, err = m.calls.runService(ctx, box, fn, args)
	} else {
		ret, err = m.calls.runAtSafePoint(ctx, anyCPU, fn, args)
	}
	if err != nil {
		return fail(err)
	}
	return ret, nil
}

// runAtSafePoint runs the function on vCPU cpu, or on the first one that reaches
// a safe point.
func (q *guestCalls) runAtSafePoint(ctx context.Context, cpu int, fn guest.GVA, args []uint64) (uint64, error) {
	m := q.m
	c := &call{fn: fn, cpu: cpu, done: make(chan struct{})}
	copy(c.args[:], args)
	stub, err := q.plantStub()
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	if m.phase != PhaseRunning {
		m.mu.Unlock()
		return 0, ErrNotRunning
	}
	q.waiting, q.stub = append(q.waiting, c), stub
	m.wakeAll()
	m.mu.Unlock()

	select {
	case <-c.done:
		return c.ret, c.err
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(q.waiting, c); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		return 0, ErrNoSafePoint
	}
	select {
	case <-c.done:
		return c.ret, c.err
	default:
		return 0, ErrCallRunning
	}
}

// plantStub writes a hlt that a function can return to, and returns its address.
// In a Linux guest it is an out to guest.PortDetour instead, because a hlt would
// not leave KVM.
func (q *guestCalls) plantStub() (guest.GVA, error) {
	m := q.m
	q.stubMu.Lock()
	defer q.stubMu.Unlock()
	if q.planted != 0 {
		return q.planted, nil
	}
	code := []byte{opHlt}
	if _, ok := m.payload().(*linuxGuest); ok {
		code = guest.TrapStub(guest.PortDetour)[:2]
	}
	a, err := m.target().AllocExec(m.Image().ID().Entry, len(code))
	if err != nil {
		return 0, err
	}
	if err := m.target().WriteExec(a, code); err != nil {
		return 0, err
	}
	q.planted = a
	return a, nil
}

// begin starts call i of the queue on vCPU v, which is at a safe point. It runs on the thread of v.
func (q *callQueue) begin(i int, v *vcpu) {
	c := q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	c.saved = *v.regs
	if err := v.enter(c.fn, c.args[:], v.regs.RSP-redZone, q.stub); err != nil {
		*v.regs = c.saved
		c.err = err
		close(c.done)
		v.asleep = true // back to the safe point
		return
	}
	v.call = c
}

// enter makes the vCPU continue at fn, with a stack below sp whose return
// address is stub.
func (v *trapFrame) enter(fn guest.GVA, args []uint64, sp uint64, stub guest.GVA) error {
	r := v.regs
	for i, n := range x86.ArgRegs {
		p := r.Reg(n)
		*p = 0
		if i < len(args) {
			*p = args[i]
		}
	}
	// At a function's entry RSP+8 is a multiple of 16 (System V ABI, 3.2.2).
	sp = sp&^15 - 8
	b := v.raw[:8]
	binary.LittleEndian.PutUint64(b, uint64(stub))
	if err := v.m.target().WriteMemory(guest.GPA(v.sregs.CR3), guest.GVA(sp), b); err != nil {
		return fmt.Errorf("push the return address: %w", err)
	}
	r.RIP, r.RSP = uint64(fn), sp
	r.RAX = 0
	r.RFLAGS &^= x86.FlagDF // clear at a function's entry (System V ABI, 3.2.1)
	v.kvm.SetRegsDirty()
	return nil
}

// finish returns vCPU v, which runs the call, to its safe point if the hlt that
// it has just executed is the one that its call returns to. Precondition:
// Machine.mu held.
func (c *call) finish(v *vcpu) {
	if guest.GVA(v.regs.RIP) != v.m.calls.stub+1 {
		return
	}
	c.ret = v.regs.RAX
	*v.regs = c.saved
	v.kvm.SetRegsDirty()
	v.call = nil
	close(c.done)
}

// endAll ends all calls with an error, because the guest that would run them has
// ended. Precondition: m.mu held.
func (q *guestCalls) endAll(why error) {
	end := func(c *call) {
		c.err = why
		close(c.done)
	}
	for _, c := range q.waiting {
		end(c)
	}
	q.waiting = nil
	if g, ok := q.m.payload().(*linuxGuest); ok {
		g.failCall(why)
	}
	for _, v := range q.m.vcpus {
		if v.call != nil {
			end(v.call)
			v.call = nil
		}
	}
}

// forgetStub makes the next call write a new return stub, because the exec areas
// are reset.
func (q *guestCalls) forgetStub() {
	q.stubMu.Lock()
	defer q.stubMu.Unlock()
	q.planted = 0
	if g, ok := q.m.payload().(*linuxGuest); ok {
		g.forgetCalls(q.m)
	}
}
