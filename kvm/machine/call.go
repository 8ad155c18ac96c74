package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
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

// anyCPU stands for the first vCPU that comes to a safe point.
const anyCPU = -1

// call is one function of the guest that the host runs at a safe point.
type call struct {
	fn    guest.GVA
	args  [maxCallArgs]uint64
	cpu   int        // on which vCPU, or anyCPU
	saved probe.Regs // of the safe point
	ret   uint64
	err   error
	done  chan struct{}
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
// arguments, and returns what it returned. It uses the guest's own call service
// (symbol gp_call_mailbox) when there is one, else a vCPU that is at a safe
// point: hlt with interrupts off. It waits until ctx ends, or 5 s when ctx
// has no deadline.
//
// Nothing is ever cut short: a call that has not begun when the time is over is
// withdrawn (ErrNoSafePoint); one that has begun goes on, and its result is
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
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	var ret uint64
	var err error
	if box, e := img.Lookup(guest.SymCallMailbox); e == nil {
		ret, err = m.callService(ctx, box, fn, args)
	} else {
		ret, err = m.callSafePoint(ctx, anyCPU, fn, args)
	}
	if err != nil {
		return fail(err)
	}
	return ret, nil
}

// callSafePoint runs the function on vCPU cpu, or the first one that comes to a
// safe point.
func (m *Machine) callSafePoint(ctx context.Context, cpu int, fn guest.GVA, args []uint64) (uint64, error) {
	c := &call{fn: fn, cpu: cpu, done: make(chan struct{})}
	copy(c.args[:], args)
	stub, err := m.plantCallStub()
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	if m.phase != PhaseRunning {
		m.mu.Unlock()
		return 0, ErrNotRunning
	}
	m.calls.waiting, m.calls.stub = append(m.calls.waiting, c), stub
	m.wakeAll()
	m.mu.Unlock()

	select {
	case <-c.done:
		return c.ret, c.err
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.calls.waiting, c); i >= 0 {
		m.calls.waiting = slices.Delete(m.calls.waiting, i, i+1)
		return 0, ErrNoSafePoint
	}
	select {
	case <-c.done:
		return c.ret, c.err
	default:
		return 0, ErrCallRunning
	}
}

// plantCallStub returns the address of a hlt that a function can return to.
func (m *Machine) plantCallStub() (guest.GVA, error) {
	m.stubMu.Lock()
	defer m.stubMu.Unlock()
	if m.stub != 0 {
		return m.stub, nil
	}
	a, err := m.target().AllocExec(m.Image().ID().Entry, 1)
	if err != nil {
		return 0, err
	}
	if err := m.target().WriteExec(a, []byte{opHlt}); err != nil {
		return 0, err
	}
	m.stub = a
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

// enter makes the vCPU go on at fn, with a stack below sp whose return address
// is stub.
func (v *vcpu) enter(fn guest.GVA, args []uint64, sp uint64, stub guest.GVA) error {
	r := v.regs
	for i, p := range []*uint64{&r.RDI, &r.RSI, &r.RDX, &r.RCX, &r.R8, &r.R9} {
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

// finish takes vCPU v, which runs the call, back to its safe point when the hlt that it has
// just executed is the one that its call returns to. Precondition: Machine.mu held.
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

// endCalls ends all calls, with an error: the guest that would run them is at
// its end. Precondition: m.mu held.
func (m *Machine) endCalls(why error) {
	end := func(c *call) {
		c.err = why
		close(c.done)
	}
	for _, c := range m.calls.waiting {
		end(c)
	}
	m.calls.waiting = nil
	for _, v := range m.vcpus {
		if v.call != nil {
			end(v.call)
			v.call = nil
		}
	}
}

// forgetStub has the next call make a new return stub: exec areas start anew.
func (m *Machine) forgetStub() {
	m.stubMu.Lock()
	defer m.stubMu.Unlock()
	m.stub = 0
}
