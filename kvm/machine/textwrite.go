package machine

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// How a kernel that patches itself is followed
//
// Its text is a read-only memory slot once it runs (protectText): what it writes there, a
// text poke of the kernel's, comes as KVM_EXIT_MMIO with address and bytes, in order (KVM API
// document, section 5). Where no probe is near the host does it. Otherwise the engine does,
// below its own bytes, while the vCPU that writes waits. A write of somebody who is not that
// kernel gives the memory up (linuxGuest.leave).

// textWrite does the access of the last exit if it is a write to protected text.
func (v *vcpu) textWrite() bool {
	m, x := v.m, &v.exit.MMIO
	off, n := guest.GPA(x.GPA)-m.watch.text.Base, int(x.Len)
	if !x.Write || uint64(off) >= m.watch.text.Size || n < 1 || n > len(x.Data) {
		return false
	}
	b, err := m.mem.Slice(guest.GPA(x.GPA), n)
	if err != nil {
		return false
	}
	v.yield() // others run, or come to rest, meanwhile: see turns
	v.n.pokes.inc()
	home := m.booted.Load().home
	at := home.Start + guest.GVA(guest.GPA(x.GPA)-home.PA)
	g, ok := m.payload().(*linuxGuest)
	intruder := ok && !v.stopper && g.intruder(v)
	if v.stopper || !intruder && !m.engine.Probed(at, n) {
		copy(b, x.Data[:n])
		return true
	}
	data := append([]byte{}, x.Data[:n]...)
	v.meanwhile(func() {
		err := probe.ErrClosed
		if intruder {
			g.intrude.Store(true)
			g.look(m)
		} else {
			err = m.engine.WriteText(at, data)
		}
		switch {
		case errors.Is(err, probe.ErrClosed):
			copy(b, data)
		case err != nil:
			m.log.Warn("the guest has changed probed text", "addr", at, "bytes", data, "err", err)
		}
	})
	return true
}
