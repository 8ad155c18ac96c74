package machine

import (
	"errors"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// How a kernel that patches itself is followed
//
// Once the kernel runs, its text is a read-only memory slot (protectText). The
// kernel's text pokes write there, and arrive as KVM_EXIT_MMIO with address and
// bytes, in order (KVM API document, section 5). Where no probe is near, the
// host does the write. Otherwise the engine does it, underneath its own bytes,
// while the writing vCPU waits. If the writer is not that kernel, the memory is
// abandoned (linuxGuest.abandonIfReplaced).

// handleTextWrite does the access of the last exit if it is a write to protected text.
func (v *vcpu) handleTextWrite() bool {
	m, x := v.m, &v.exit.MMIO
	off, n := guest.GPA(x.GPA)-m.watch.text.Base, int(x.Len)
	if !x.Write || uint64(off) >= m.watch.text.Size || n < 1 || n > len(x.Data) {
		return false
	}
	b, err := m.mem.Slice(guest.GPA(x.GPA), n)
	if err != nil {
		return false
	}
	v.m.turns.unlock(v) // lets others run or come to rest: see turns
	v.n.pokes.inc()
	home := m.booted.Load().home
	at := home.Start + guest.GVA(guest.GPA(x.GPA)-home.PA)
	g, ok := m.payload().(*linuxGuest)
	if ok {
		defer g.seen.Load().NotePoke()
	}
	if a := v.timeAlone(); a != nil && a.write(at, b, x.Data[:n]) {
		return true
	}
	intruder := ok && !v.where.stops() && g.isIntruder(v)
	if v.where.stops() || !intruder && !m.engine.Probed(at, n) {
		copy(b, x.Data[:n])
		return true
	}
	data := append([]byte{}, x.Data[:n]...)
	v.runAside(statePoking, func(waits func() bool) {
		if !intruder {
			v.pokeText(at, b, data, waits)
			return
		}
		g.intrude.Store(true)
		g.checkKernel(m)
		copy(b, data)
	})
	return true
}

// How long the host waits before it retries a guest's write to its text. It
// gives up when the wait would be longer than the last one.
const (
	firstPokeWait = 10 * time.Millisecond
	lastPokeWait  = time.Second
)

// pokeText has the engine write b to the guest's text at address at, in memory,
// while the vCPU waits. The guest assumes that the write succeeds, so it must.
// While the world cannot be stopped, because a handler does not return, the
// write is retried without a limit; after other errors it is retried some times.
// Then the guest is ended: with other text than it expects, it would fail
// anywhere later.
func (v *vcpu) pokeText(at guest.GVA, memory, b []byte, waits func() bool) {
	m := v.m
	for wait := firstPokeWait; ; {
		written, err := m.engine.WriteText(at, b, waits, func(probe.World) ([]probe.TextWrite, error) { return m.runAlone(v, at) })
		var late *StopTimeoutError
		switch {
		case written && err != nil:
			m.log.Warn("the guest has changed probed text", "addr", at, "bytes", b, "err", err)
			return
		case err == nil, !waits(), errors.Is(err, ErrClosed):
			return
		case errors.Is(err, probe.ErrClosed): // the engine is closed
			copy(memory, b)
			return
		case errors.As(err, &late):
			m.log.Error("what the guest writes to its text waits until the vCPUs can be stopped", "vcpu", v.id, "addr", at, "err", err)
			continue
		}
		if wait > lastPokeWait {
			v.crash(CrashHost, fmt.Sprintf("what the guest has written to its text at %v could not be written: %v", at, err))
			return
		}
		m.log.Error("what the guest writes to its text could not be written yet", "vcpu", v.id, "addr", at, "err", err)
		time.Sleep(wait)
		wait *= 2
	}
}
