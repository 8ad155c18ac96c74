package machine

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// How an instruction is executed in its place
//
// Every other vCPU is stopped, the site has its original bytes back, and the
// vCPU runs until it comes to one of the places where it can go from there:
//
//   - where the instruction leads: each of these has a temporary int3. Where
//     they cannot be known beforehand, and the host can single-step code at this
//     privilege, it is single-stepped instead;
//   - where an exception of the instruction leads: the handlers in the guest's
//     IDT have temporary int3s as well. This works on every host that serves
//     probes at all, and it tells for certain whether the instruction was
//     executed: a single-step trap comes only after the first instruction of
//     the handler, and leaves TF set in the frame.
//
// So the world is never stopped for longer than one instruction takes.

// stepInPlace executes the one instruction at v.trap.state, and tells the
// engine how it went.
func (v *vcpu) stepInPlace() {
	site := guest.GVA(v.trap.state.Regs.RIP)
	var end landing
	step := func() (err error) {
		end, err = v.stepAlone(site)
		return err
	}
	var err error
	if v.stopper {
		err = step() // nested: the world is this vCPU's already
	} else {
		err = v.m.stopWorld(v, stopTimeout, step)
	}
	switch {
	case errors.Is(err, ErrClosed), errors.Is(err, ErrNotRunnable):
	case errors.Is(err, errElsewhere):
		v.m.log.Warn("an instruction stepped in place did not end where it can; the guest goes on", "vcpu", v.id, "addr", site)
	case err != nil:
		v.crashed(CrashHost, fmt.Sprintf("the instruction at %v could not be stepped in place: %v", site, err))
	case end.handler:
		v.faultInPlace(end)
	default:
		v.n.inPlace.inc()
		v.obey(v.m.engine.Stepped(v.id, v.trap.state))
	}
}

// stepAlone runs the instruction at site while the world is stopped. On success
// v.trap is the trap at the landing, with RIP there.
func (v *vcpu) stepAlone(site guest.GVA) (end landing, err error) {
	var p patches
	// The world goes on with the text as it was, whatever happens.
	defer func() { err = errors.Join(err, p.undo()) }()
	if orig, ok := v.m.engine.Original(site); ok {
		// Another stopper may have taken the probe off while this one waited for
		// its turn.
		if err := p.apply(v.m.space(0), site, orig); err != nil {
			return end, err
		}
	}
	places, known := v.landings(site)
	for i, l := range places {
		if l.at == site {
			known = false // it may go on where it is
			continue
		}
		err := p.apply(v.m.space(0), l.at, opInt3)
		if err != nil && !l.handler {
			known = false // not the kernel's tables, or not memory
		}
		places[i].planted = err == nil
	}
	tf := false
	if !known {
		if v.m.host.Traps.CPL(v.trap.state.CPL).Step != DeliveryWorks {
			return end, errUnknownLanding
		}
		tf = true
		if err := v.kvm.SetGuestDebug(kvm.GuestDebug{Control: guestDebug | kvm.DebugSingleStep}); err != nil {
			return end, err
		}
		defer func() {
			err = errors.Join(err, v.kvm.SetGuestDebug(kvm.GuestDebug{Control: guestDebug}))
		}()
	}
	v.resume()
	err = v.runNested(func() bool {
		if !v.arrived() {
			return false
		}
		at := guest.GVA(v.trap.state.Regs.RIP)
		switch v.trap.trap.Kind {
		case probe.TrapStep:
			end = landing{at: at}
			return tf
		case probe.TrapBreakpoint:
			for _, l := range places {
				if l.planted && l.at == at {
					end = l
					v.count()
					v.n.traps.inc()
					return true
				}
			}
		}
		return false
	})
	return end, err
}

// errUnknownLanding: it cannot be told where an instruction leads, and the host
// cannot single-step it.
var errUnknownLanding = errors.New("where it leads is not known beforehand, and this host cannot single-step it")

// faultInPlace tells the engine that the instruction has raised an exception.
// The guest stands at the first instruction of its own handler, in v.trap.
func (v *vcpu) faultInPlace(end landing) {
	if !end.vectorKnown {
		v.resume()
		return
	}
	at, regs := v.trap, *v.trap.state.Regs
	root := at.state.Root
	f := arrival{via: viaStub, frame: guest.GVA(regs.RSP)}
	f.trap = probe.Trap{Kind: probe.TrapFault, Vector: end.vector}
	if hasErrorCode(end.vector) {
		w, err := readWord(v.m.space(root), f.frame)
		if err != nil {
			v.resume()
			return
		}
		f.trap.Code = uint32(w)
		f.frame += 8
	}
	if end.vector == vectorPF {
		f.trap.CR2 = guest.GVA(v.sregs.CR2)
	}
	b := v.raw[:8*frameWords]
	if v.m.ReadMemory(root, f.frame, b) != nil {
		v.resume()
		return
	}
	v.frame = regs
	v.unpackFrame(&f, b)
	v.trap = f
	d := v.m.engine.Hit(v.id, f.state, f.trap)
	switch d.Action {
	case probe.Resume: // a fault handler has put it right
		v.leaveStub()
	case probe.Inject: // as another exception
		v.leaveStub()
		v.deliver(d.Fault)
	default: // the guest's own handler goes on
		v.trap, v.frame = at, regs
		v.trap.state.Regs = &v.frame
		if at.via == viaExit {
			v.trap.state.Regs = v.regs
		}
		v.resume()
	}
}
