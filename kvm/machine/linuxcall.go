package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// threadCall is a function of a Linux guest's kernel that one of the kernel's
// threads runs for the host, from a work item in the engine's memory. The vCPU
// puts the item into the kernel's queue during an interrupt that the host has
// sent it.
type threadCall struct {
	block guest.GVA // the work item, followed by the data that callee and caller exchange
	mem   []byte    // the same, on the host
	code  guest.Range
	done  chan struct{} // closed at the end of the call, or when its guest has ended
	freed atomic.Bool

	// Guarded by Machine.mu.
	failed bool // done is closed,
	err    error
}

// Contents of a threadCall's block after the work item.
const (
	callItem   = 128 // room for struct work_struct, including fields for debugging
	callResult = callItem
	callDone   = callItem + 8 // 1: the result is there
	callArgs   = callItem + 16
	callBlock  = callArgs + 8*maxCallArgs
)

// How often the host checks a threadCall for its result, and after how long it
// sends the interrupt again.
const (
	callPoll  = 500 * time.Microsecond
	callAgain = 100 * time.Millisecond
)

// finished reports whether the function has returned. Its thread may still be on
// its way out of code.
func (c *threadCall) finished() bool { return littleEndian(c.mem[callDone:][:8]) != 0 }

// inCall reports whether one of the host's calls of a function is in progress.
// In that case the guest's memory contains addresses of code that does not exist
// without us. Precondition: the world is stopped.
func (g *linuxGuest) inCall(m *Machine) bool {
	c := g.call.Load()
	if c == nil {
		return false
	}
	for _, v := range m.vcpus { // after the last instruction of its code no interrupt arrives before it has returned
		if rip := guest.GVA(v.regs.RIP); rip >= c.code.Start && rip < c.code.End {
			return true
		}
	}
	return !c.finished()
}

// errInCall: a snapshot has to wait for one of the host's calls.
var errInCall = fmt.Errorf("%w: a thread of the guest's kernel runs a function that the host calls", probe.ErrInside)

// callThread runs a kernel function of a Linux guest on a thread of its kernel.
// One call at a time. Without a deadline in ctx it waits callTimeout, counted
// from when the guest can accept calls: the first probe of a boot takes time.
func (g *linuxGuest) callThread(ctx context.Context, m *Machine, fn guest.GVA, args []uint64) (uint64, error) {
	if !g.calling.CompareAndSwap(false, true) {
		return 0, newLaterError(ErrCallBusy)
	}
	defer g.calling.Store(false)
	if old := g.call.Load(); old != nil {
		if !old.finished() {
			return 0, newLaterError(ErrCallBusy)
		}
		g.endCall(m, old)
	}
	if m.Phase() != PhaseRunning {
		return 0, newLaterError(ErrNotRunning)
	}
	view := g.seen.Load()
	if s, known := view.System(); known && s < linux.StateRunning {
		return 0, newLaterError(errors.New("the guest's kernel has not started yet"))
	}
	how, err := view.Worker()
	if err != nil {
		return 0, err
	}
	if how.Size > callItem {
		return 0, fmt.Errorf("struct work_struct of the guest's kernel has %d bytes, more than %d", how.Size, callItem)
	}
	c, err := g.prepareCall(m, how, fn, args)
	if err != nil {
		return 0, err
	}
	k, came, withdraw := c.handOver(g, how)
	if err := m.engine.Register(k); err != nil {
		g.endCall(m, c)
		return 0, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	queued, err := g.awaitQueued(ctx, m, how, came, withdraw)
	if e := m.engine.Unregister(k); e != nil && !errors.Is(e, probe.ErrClosed) {
		m.log.Warn("the engine's own probe of a call", "err", e)
	}
	if err != nil && !queued {
		g.endCall(m, c)
		return 0, err
	}
	poll := time.NewTicker(callPoll)
	defer poll.Stop()
	for !c.finished() {
		select {
		case <-poll.C:
		case <-c.done:
			return 0, c.err
		case <-ctx.Done():
			return 0, newLaterError(ErrCallRunning)
		}
	}
	ret := littleEndian(c.mem[callResult:][:8])
	g.endCall(m, c)
	select {
	case <-c.done: // the memory may belong to another call by now
		return 0, c.err
	default:
		return ret, nil
	}
}

// newLaterError says that a call may succeed another time.
func newLaterError(err error) error { return &laterError{err} }

// laterError is a probe.ErrCallLater.
type laterError struct{ error }

// Unwrap returns the cause.
func (e *laterError) Unwrap() error { return e.error }

// Is makes the error a probe.ErrCallLater.
func (e *laterError) Is(target error) bool { return target == probe.ErrCallLater }

// prepareCall creates the work item of a call, and its code.
func (g *linuxGuest) prepareCall(m *Machine, how linux.Worker, fn guest.GVA, args []uint64) (*threadCall, error) {
	near := m.Image().ID().Entry
	code := g.callCode.Load()
	if code == nil {
		at, err := m.target().AllocExec(near, callCodeSize)
		if err != nil {
			return nil, err
		}
		code = &guest.Range{Start: at, End: at + callCodeSize}
		g.callCode.Store(code)
	}
	block, mem, err := m.AllocShared(callBlock, false)
	if err != nil {
		return nil, err
	}
	put := func(off int, v uint64) { binary.LittleEndian.PutUint64(mem[off:], v) }
	put(0, how.Data)
	put(8, uint64(block)+8) // an empty list
	put(16, uint64(block)+8)
	put(int(how.Func), uint64(code.Start))
	for i, a := range args {
		put(callArgs+8*i, a)
	}
	c := &threadCall{block: block, mem: mem, code: *code, done: make(chan struct{})}
	text, err := callThunk(code.Start, fn)
	if err == nil {
		// With the world stopped, no processor has old bytes of it cached when it enters
		// the guest.
		err = m.target().Stop(func(probe.World) error { return m.target().WriteExec(code.Start, text) })
	}
	if err != nil {
		m.FreeShared(block)
		return nil, err
	}
	return c, nil
}

// callCodeSize is the room for callThunk.
const callCodeSize = 128

// opSti is sti.
const opSti = 0xfb

// callThunk returns the code of the work item's function, for address at. The
// function calls fn with the arguments in the block, and stores the result. It
// sets the done flag with interrupts off, and they are on again only after the
// return: once the flag is set, nothing leads back here.
func callThunk(at, fn guest.GVA) ([]byte, error) {
	a := x86.NewAsm(uint64(at))
	a.Append([]byte(x86.Endbr64))
	a.Push(x86.RBX)
	a.Mov(8, x86.RBX, x86.RDI)
	for i, r := range [maxCallArgs]x86.Reg64{x86.RDI, x86.RSI, x86.RDX, x86.RCX, x86.R8, x86.R9} {
		a.Mov(8, r, x86.At(x86.RBX, callArgs+8*i))
	}
	a.Call(a.LabelAt(uint64(fn)))
	a.Cli()
	a.Mov(8, x86.At(x86.RBX, callResult), x86.RAX)
	a.Mov(4, x86.RAX, x86.Imm(1))
	a.Mov(8, x86.At(x86.RBX, callDone), x86.RAX)
	a.Pop(x86.RBX)
	a.Append([]byte{opSti})
	a.Ret()
	return a.Link()
}

// handOver returns a probe. At its hit, the kernel queues the work item of c,
// once, and the outcome of that is sent to came. withdraw prevents it, and reports
// whether it was in time.
func (c *threadCall) handOver(g *linuxGuest, how linux.Worker) (k *probe.Kprobe, came chan error, withdraw func() bool) {
	var begun atomic.Bool
	came = make(chan error, 1)
	k = &probe.Kprobe{Name: "call", Symbol: how.At, Pre: func(x *probe.Context) int {
		if x.CPL != 0 || x.Regs.RFLAGS&x86.FlagIF != 0 || !begun.CompareAndSwap(false, true) {
			return 0
		}
		var word [8]byte
		err := x.Read(how.Queue, word[:])
		var taken uint64
		if err == nil {
			taken, err = x.Call(how.QueueWork, uint64(x.CPU), littleEndian(word[:]), uint64(c.block))
		}
		if err == nil && taken&0xff == 0 {
			err = errors.New("the guest's kernel has not taken the work item")
		}
		if err == nil {
			g.call.Store(c)
		}
		came <- err
		return 0
	}}
	return k, came, func() bool { return begun.CompareAndSwap(false, true) }
}

// awaitQueued makes the vCPUs reach the probe of handOver, and reports whether
// the kernel has queued the work item: then it will run it sooner or later.
func (g *linuxGuest) awaitQueued(ctx context.Context, m *Machine, how linux.Worker, came <-chan error, withdraw func() bool) (queued bool, err error) {
	leads := false
	err = m.target().Stop(func(probe.World) error {
		to, ok := gateTarget(m.vcpus[0], how.Vector)
		leads = ok && to == uint64(how.Handler)
		return nil
	})
	if err == nil && !leads {
		err = fmt.Errorf("interrupt %#x of the guest's kernel does not lead to where the kernel's names have its handler", how.Vector)
	}
	again := time.NewTicker(callAgain)
	defer again.Stop()
	for err == nil {
		if err = g.wake(m, how.Vector); err != nil {
			break
		}
		select {
		case err := <-came:
			return err == nil, err
		case <-again.C:
			if m.Phase() != PhaseRunning {
				err = newLaterError(ErrNotRunning)
			}
		case <-ctx.Done():
			err = newLaterError(errNoInterrupt)
		}
	}
	if withdraw() {
		return false, err
	}
	err = <-came // a handler has just started
	return err == nil, err
}

// errNoInterrupt: no vCPU took the interrupt of a call.
var errNoInterrupt = errors.New("no vcpu of the guest has taken an interrupt in time; nothing was run")

// wake sends the vCPUs the interrupt.
func (g *linuxGuest) wake(m *Machine, vector uint8) error {
	vm := g.board.Load().vm.Load()
	if vm == nil {
		return ErrNotRunning
	}
	var first error
	sent := false
	for _, v := range m.vcpus {
		err := vm.SendInterrupt(uint8(v.id), vector)
		sent = sent || err == nil
		if first == nil {
			first = err
		}
	}
	if sent {
		return nil // others may be off
	}
	return first
}

// endCall frees a call's memory. Its function has returned, or never runs.
func (g *linuxGuest) endCall(m *Machine, c *threadCall) {
	g.call.CompareAndSwap(c, nil)
	if c.freed.CompareAndSwap(false, true) {
		m.FreeShared(c.block)
	}
}

// failCall ends the wait for the call in progress with an error, because the
// guest that runs it has ended. Precondition: m.mu held.
func (g *linuxGuest) failCall(why error) {
	if c := g.call.Load(); c != nil && !c.failed {
		c.err, c.failed = why, true
		close(c.done)
	}
}

// forgetCalls forgets the call in progress, and its code, because another guest
// gets the memory.
func (g *linuxGuest) forgetCalls(m *Machine) {
	if c := g.call.Load(); c != nil {
		g.endCall(m, c)
	}
	g.callCode.Store(nil)
}
