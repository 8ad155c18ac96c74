package machine

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/insn"
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
	traced := v.trap.state.Regs.RFLAGS&insn.FlagTF != 0
	held := v.holdsBack()
	step := func() (err error) {
		end, err = v.stepAlone(site, traced, held)
		return err
	}
	var err error
	if v.stopper {
		err = step() // nested: the world is this vCPU's already
	} else {
		err = v.m.stopWorld(v, step)
	}
	switch {
	case v.debugged && (errors.Is(err, errUnknownLanding) || errors.Is(err, ErrResetMeanwhile)):
		v.m.engine.Unstepped(v.id)
		v.stepErr = err
		v.resume()
	case errors.Is(err, ErrClosed), errors.Is(err, ErrNotRunnable), errors.Is(err, ErrResetMeanwhile):
	case errors.Is(err, errElsewhere):
		v.m.log.Warn("an instruction stepped in place did not end where it can; the guest goes on", "vcpu", v.id, "addr", site)
	case err != nil:
		v.crashed(CrashHost, fmt.Sprintf("the instruction at %v could not be stepped in place: %v", site, err))
	case end.handler:
		v.faultInPlace(site, end, traced, held)
	default:
		v.steppedInPlace(held)
	}
}

// steppedInPlace tells the engine that the instruction has been executed, with the flags of held held back.
func (v *vcpu) steppedInPlace(held uint64) {
	v.n.inPlace.inc()
	v.obey(v.m.engine.Stepped(v.id, v.trap.state))
	v.owed = held&insn.FlagTF != 0
}

// stepAlone runs the instruction at site while the world is stopped. On success
// v.trap is the trap at the landing, with RIP there.
func (v *vcpu) stepAlone(site guest.GVA, traced bool, held uint64) (end landing, err error) {
	var p patches
	// The world goes on with the text as it was, whatever happens.
	defer func() { err = errors.Join(err, p.undo()) }()
	// Where the instruction is, and where it leads, are addresses of the
	// interrupted code: another address space than the kernel's, or another
	// mapping of the same page, perhaps.
	as := v.m.space(v.trap.state.Root)
	// Another stopper may have taken the probe off while this one waited for its turn; and a
	// debugger steps where others have jumps.
	code, err := p.own(v.m.engine, as, v.trap.state.Root, site)
	if err != nil {
		return end, err
	}
	places, known := v.landings(site, code)
	for i, l := range places {
		if l.at == site {
			known = false // it may go on where it is
			continue
		}
		// Where nothing is mapped there is nothing to plant: going there is an
		// exception.
		places[i].planted = p.apply(as, l.at, insn.Int3) == nil
	}
	tf := false
	if !known {
		if v.m.host.Traps.CPL(v.trap.state.CPL).Step != host.DeliveryWorks {
			return end, errUnknownLanding
		}
		tf = true
		step := v.m.watch.debug
		step.Control |= kvm.DebugSingleStep
		if err := v.kvm.SetGuestDebug(step); err != nil {
			return end, err
		}
		defer func() {
			err = errors.Join(err, v.kvm.SetGuestDebug(v.m.watch.debug))
		}()
	}
	v.trap.state.Regs.RFLAGS &^= held
	v.resume()
	err = v.runNested(func() bool {
		if !v.arrived() {
			return false
		}
		at := guest.GVA(v.trap.state.Regs.RIP)
		if t := &v.trap.trap; t.Kind == probe.TrapWatch && tf && t.DR6&dr6Step != 0 {
			// Both at once: the watchpoint first.
			v.m.engine.Hit(v.id, v.trap.state, *t)
			t.Kind = probe.TrapStep
		}
		switch v.trap.trap.Kind {
		case probe.TrapStep:
			if tf && !traced {
				v.trap.state.Regs.RFLAGS &^= insn.FlagTF
			}
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
	switch {
	case held == 0 || end.handler:
	case err == nil:
		v.trap.state.Regs.RFLAGS |= held
	case v.cpl() == 3:
		v.regs.RFLAGS |= held
		v.kvm.SetRegsDirty()
	}
	return end, err
}

// holdsBack returns the flags that are clear while an instruction is stepped in its place, and set again behind it; exceptions of the
// instruction push them (atHandler).
//
// IF: that of user code of a Linux guest. Its interrupt controllers are
// KVM's, so an interrupt would come before the instruction, and the scheduler with it. What an
// instruction at CPL3 does with IF the engine emulates, or refuses.
//
// TF: a debugger's step of code that the guest itself single-steps ends where the trap behind the instruction leads. The
// trap is raised when the instruction is known to be done (advance), as it is behind one that was emulated. One that is
// repeated traps each time, and the guest has all of these in one step.
func (v *vcpu) holdsBack() (held uint64) {
	flags := v.trap.state.Regs.RFLAGS
	_, ok := v.m.payload().(*linuxGuest)
	if ok && flags&insn.FlagIF != 0 && v.trap.state.CPL == 3 {
		held = insn.FlagIF
	}
	if !v.debugged {
		return held
	}
	code := make([]byte, insn.MaxLen)
	n := v.m.ownCode(v.trap.state.Root, guest.GVA(v.trap.state.Regs.RIP), code)
	inst, err := insn.Decode(code[:n])
	if err != nil {
		return held
	}
	f := inst.Flags()
	free := flags &^ uint64(f.Reads|f.Writes)
	if ok {
		held |= free & insn.FlagIF
	}
	if !inst.Repeats() {
		held |= free & insn.FlagTF
	}
	return held
}

// errUnknownLanding: it cannot be told where an instruction leads, and the host
// cannot single-step it.
var errUnknownLanding = errors.New("where it leads is not known beforehand, and this host cannot single-step it")

// faultInPlace tells the engine that the instruction at site has raised an
// exception. The guest stands at the first instruction of its own handler, in
// v.trap.
//
// traced says that the guest itself was single-stepping. If not, and the host
// has, its TF must not stay in the frame. held are the flags that the frame has clear, and must not.
func (v *vcpu) faultInPlace(site guest.GVA, end landing, traced bool, held uint64) {
	at, regs := v.trap, *v.trap.state.Regs
	if !end.vectorKnown || !v.atHandler(end.vector, regs, traced, held) {
		v.resume()
		return
	}
	if guest.GVA(v.frame.RIP) != site {
		// The instruction is done: what faulted is going where it leads. The
		// guest goes there once more, after the post handlers.
		v.steppedInPlace(held)
		return
	}
	d := v.m.engine.Hit(v.id, v.trap.state, v.trap.trap)
	if d.Action != probe.NotOurs {
		v.obey(d)
		return
	}
	v.trap, v.frame = at, regs // the guest's own handler goes on
	if at.via != viaExit {
		v.trap.state.Regs = &v.frame
	}
	v.resume()
}

// atHandler makes v.trap the exception whose handler the guest has just
// entered with the registers regs, seen from the code that raised it.
func (v *vcpu) atHandler(vector uint8, regs probe.Regs, traced bool, held uint64) bool {
	root := v.trap.state.Root
	f := arrival{via: viaHandler, frame: guest.GVA(regs.RSP)}
	f.trap = probe.Trap{Kind: probe.TrapFault, Vector: vector}
	if hasErrorCode(vector) {
		w, err := readWord(v.m.space(root), f.frame)
		if err != nil {
			return false
		}
		f.trap.Code = uint32(w)
		f.frame += 8
	}
	if vector == insn.VectorPF {
		f.trap.CR2 = guest.GVA(v.sregs.CR2)
	}
	b := v.raw[:8*frameWords]
	if v.m.target().ReadMemory(root, f.frame, b) != nil {
		return false
	}
	v.frame = regs
	v.unpackFrame(&f, b)
	flags := v.frame.RFLAGS
	if !traced {
		flags &^= insn.FlagTF
	}
	flags |= held
	if flags != v.frame.RFLAGS {
		v.frame.RFLAGS = flags
		binary.LittleEndian.PutUint64(b[8*frameRFLAGS:], v.frame.RFLAGS)
		if v.m.target().WriteMemory(root, f.frame, b) != nil {
			return false
		}
	}
	v.trap = f
	return true
}
