package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// How an instruction is executed in its place
//
// Every other vCPU is stopped, the site has its original bytes back, and the
// vCPU runs until it reaches one of the places where it can go from there:
//
//   - Where the instruction leads. Each of these places has a temporary int3. If
//     they cannot be known beforehand, or the int3 could not be delivered
//     (deliversAfter), the instruction is single-stepped, provided that the host
//     can single-step code at this privilege level.
//   - Where an exception of the instruction leads. The handlers in the guest's
//     IDT have temporary int3s as well. This works on every host that supports
//     probes at all, and it shows for certain whether the instruction was
//     executed: a single-step trap comes only after the first instruction of the
//     handler, and leaves TF set in the frame.
//
// So the world is never stopped for longer than one instruction takes.

// inPlace is one instruction that a vCPU executes in its place. The vCPU's thread owns it.
type inPlace struct {
	v      *vcpu
	site   guest.GVA // where it is
	traced bool      // the guest itself single-steps it
	held   uint64    // flags that are cleared while it is executed: see heldFlags

	// While the world is stopped.
	inst   x86.Inst
	as     guest.AddressSpace
	reach  *reach
	places []landing // where it can lead
	end    landing   // where it has led
}

// stepInPlace executes the one instruction at v.trap.state, and reports the
// outcome to the engine.
func (v *vcpu) stepInPlace() {
	regs := v.trap.state.Regs
	s := inPlace{v: v, site: guest.GVA(regs.RIP), traced: regs.RFLAGS&x86.FlagTF != 0}
	s.held = s.heldFlags()
	var err error
	if v.where.stops() {
		err = s.execute() // nested: this vCPU has the world stopped already
	} else {
		err = v.m.stopWorld(v, s.execute)
	}
	switch {
	case v.step != nil && (errors.Is(err, errUnknownLanding) || errors.Is(err, errUndelivered) || errors.Is(err, ErrStepOverwrites) || errors.Is(err, ErrGuestReset)):
		v.m.engine.CancelStep(v.id)
		v.step.err = err
		v.resume()
	case errors.Is(err, ErrClosed), errors.Is(err, ErrNotRunnable), errors.Is(err, ErrGuestReset):
	case errors.Is(err, errElsewhere):
		if v.step != nil {
			v.step.err = ErrRanAway
		}
		v.m.log.Warn("an instruction stepped in place did not end where it can; the guest continues", "vcpu", v.id, "addr", s.site)
	case err != nil:
		v.crash(CrashHost, fmt.Sprintf("the instruction at %v could not be stepped in place: %v", s.site, err))
	case s.end.handler:
		s.fault()
	default:
		s.finish()
	}
}

// finish reports to the engine that the instruction has been executed.
func (s *inPlace) finish() {
	v := s.v
	v.n.inPlace.inc()
	v.obey(v.m.engine.NoteStep(v.id, v.trap.state))
	if v.step != nil {
		v.step.owed = s.held&x86.FlagTF != 0
	}
}

// execute runs the instruction while the world is stopped. On success s.end is its landing, and
// v.trap the trap there, with RIP at it.
func (s *inPlace) execute() (err error) {
	v := s.v
	var p patches
	// When the world resumes the text is as before, whatever happens.
	defer func() { err = errors.Join(err, p.undo()) }()
	// The addresses of the instruction and its destinations belong to the
	// interrupted code. That may use another address space than the kernel's, or
	// another mapping of the same page.
	s.as = v.m.space(v.trap.state.Root)
	// Another stopper may have removed the probe while this one waited for its
	// turn; and a debugger steps where other probes have jumps.
	code, err := p.restoreCode(v.m.engine, s.as, v.trap.state.Root, s.site)
	if err != nil {
		return err
	}
	var known bool
	s.places, known = s.landings(code)
	// An undecodable one accesses no memory: it raises an exception.
	s.inst, _ = x86.Decode(code)
	s.reach = s.findReach()
	spaces := []guest.AddressSpace{s.as}
	if next, ok := s.nextSpace(); ok {
		spaces = append(spaces, next)
	}
	known = s.plant(&p, spaces) && known
	reached := func(handler bool) bool {
		return slices.ContainsFunc(s.places, func(l landing) bool { return l.reached && l.handler == handler })
	}
	tf, copied, limit := false, aside{}, nestedLimit
	breaks := s.deliversAfter()
	switch {
	case v.step != nil && reached(true) && s.reach.mayFault(v.trap.state.CPL == 3):
		return ErrStepOverwrites // an exception would lead to an unknown place
	case v.step != nil && !breaks && !s.reach.open && s.reach.mayFault(v.trap.state.CPL == 3):
		return errUndelivered // the int3s at the guest's handlers are not delivered either
	case known && !s.reach.open && breaks:
	case s.canSingleStep():
		tf = true
		step := v.m.watch.debug
		step.Control |= kvm.DebugSingleStep
		if err := v.kvm.SetGuestDebug(step); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, v.kvm.SetGuestDebug(v.m.watch.debug))
		}()
	case !breaks && v.step != nil:
		return errUndelivered
	default:
		var ok bool
		if copied, ok = s.stepAside(); ok {
			defer copied.undo()
			s.places = append(s.places, landing{at: copied.end, planted: true})
			v.trap.state.Regs.RIP = uint64(copied.at)
		} else if !known {
			switch {
			case !reached(false):
				return errUnknownLanding
			case v.step != nil:
				return ErrStepOverwrites
			}
			// A hit must be completed without an effect on the guest, so the guest runs
			// without an end of the step.
			limit = looseLimit
		}
	}
	v.trap.state.Regs.RFLAGS &^= s.held
	v.resume()
	begun, started, slow := v.trap.state.Regs.RIP, time.Now(), notBegunLimit
	if limit == looseLimit { // it may have led to itself
		slow = nestedLimit
	}
	for deadline := started.Add(nestedLimit); ; v.resume() {
		err = s.runToLanding(limit, tf)
		for errors.Is(err, errElsewhere) && v.regs.RIP == begun && !s.inst.Repeats() && time.Since(started) < slow {
			err = s.runToLanding(limit, tf)
		}
		if err != nil || !tf || s.end.at != s.site || s.end.handler {
			break
		}
		// Between two rounds of a repeated one, whose bytes are still the same?
		now := make([]byte, len(code))
		if !s.inst.Repeats() || s.as.Read(s.site, now) != nil || !bytes.Equal(now[:s.inst.Len], code[:s.inst.Len]) || time.Now().After(deadline) {
			break
		}
	}
	if s.end.moved = copied; err == nil && !s.end.handler {
		v.trap.state.Regs.RIP = uint64(copied.home(guest.GVA(v.trap.state.Regs.RIP)))
		if copied.bytes != nil && s.inst.KeepsFIP() {
			err = copied.setFIP(v)
		}
	}
	switch {
	case s.held == 0 || s.end.handler:
	case err == nil:
		v.trap.state.Regs.RFLAGS |= s.held
	case v.cpl() == 3:
		v.regs.RFLAGS |= s.held
		v.kvm.SetRegsDirty()
	}
	return err
}

// looseLimit is how long the guest runs after a hit whose instruction is
// executed without an end that the host sees. During that time the probe is not
// armed, and the other vCPUs are stopped.
const looseLimit = time.Millisecond

// notBegunLimit is how long an instruction that is stepped in its place may take
// to begin, with the others stopped. Even a slow host spends less than that on
// other work. It is shorter than the wait of other stoppers
// (defaultStopTimeout).
const notBegunLimit = 5 * time.Second

// plant puts temporary int3s at the addresses where the instruction can lead,
// except where it reads or writes them itself. It reports whether all places
// that it can reach without an exception have one.
func (s *inPlace) plant(p *patches, spaces []guest.AddressSpace) (known bool) {
	known = true
	for i, l := range s.places {
		if l.at == s.site {
			known = false // it may lead to itself
			continue
		}
		if s.places[i].reached = s.reach.has(l.at); s.places[i].reached {
			known = known && l.handler
			continue
		}
		// Where nothing is mapped no int3 is needed: going there is an exception.
		for _, as := range spaces {
			s.places[i].planted = p.apply(as, l.at, x86.Int3) == nil || s.places[i].planted
		}
	}
	return known
}

// runToLanding runs the guest from v.trap until it reaches one of the places,
// or, with tf, has executed one instruction.
func (s *inPlace) runToLanding(limit time.Duration, tf bool) error {
	v := s.v
	s.end = landing{}
	return v.runNestedFor(limit, func() bool {
		if !v.readTrap() {
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
			if tf && !s.traced {
				v.trap.state.Regs.RFLAGS &^= x86.FlagTF
			}
			s.end = landing{at: at}
			return tf
		case probe.TrapBreakpoint:
			for _, l := range s.places {
				if l.planted && l.at == at {
					s.end = l
					v.countExit()
					v.n.traps.inc()
					return true
				}
			}
		}
		return false
	}, nil)
}

// heldFlags returns the flags that are cleared while an instruction is stepped
// in its place, and set again after it. Exceptions of the instruction push them
// as set (finishAtHandler).
//
// IF is held for user code of a Linux guest. KVM provides the guest's interrupt
// controllers, so an interrupt could arrive before the instruction and switch
// tasks. If an instruction at CPL3 uses IF itself, the engine emulates or
// rejects it.
//
// TF is held when a debugger steps code that the guest itself single-steps. The
// step ends at the handler of the trap that follows the instruction. The trap is
// raised once the instruction is known to be done (debugStep.execute), as after
// an emulated one. A repeated instruction traps at each iteration, and the guest
// sees all of them in one step.
func (s *inPlace) heldFlags() (held uint64) {
	v := s.v
	flags := v.trap.state.Regs.RFLAGS
	_, ok := v.m.payload().(*linuxGuest)
	if ok && flags&x86.FlagIF != 0 && v.trap.state.CPL == 3 {
		held = x86.FlagIF
	}
	if v.step == nil {
		return held
	}
	code := make([]byte, x86.MaxLen)
	n := v.m.readOwnCode(v.trap.state.Root, guest.GVA(v.trap.state.Regs.RIP), code)
	inst, err := x86.Decode(code[:n])
	if err != nil {
		return held
	}
	f := inst.Flags()
	free := flags &^ uint64(f.Reads|f.Writes)
	if ok {
		held |= free & x86.FlagIF
	}
	if !inst.Repeats() && inst.Class() != x86.ClassLoadSS { // no trap comes after mov ss (SDM Vol. 3, 6.8.3)
		held |= free & x86.FlagTF
	}
	return held
}

// errUnknownLanding: it is unknown where an instruction leads, and the host
// cannot single-step it.
var errUnknownLanding = errors.New("where it leads is not known beforehand, and this host cannot single-step it")

// fault reports to the engine that the instruction has raised an exception. The
// guest is at the first instruction of its own handler, in v.trap.
//
// If the host has single-stepped and the guest has not, TF must not stay in the
// frame. The flags of s.held must be in it.
func (s *inPlace) fault() {
	v := s.v
	at, regs := v.trap, *v.trap.state.Regs
	if !s.end.vectorKnown || !s.finishAtHandler(regs) {
		v.resume()
		return
	}
	if guest.GVA(v.frame.RIP) != s.site {
		// The instruction is done: the fault was raised at its destination. The guest goes
		// there again after the post handlers.
		s.finish()
		return
	}
	d := v.m.engine.Hit(v.id, v.trap.state, v.trap.trap)
	if d.Action != probe.NotOurs {
		v.obey(d)
		return
	}
	v.trap, v.frame = at, regs // the guest's own handler continues
	if at.via != viaExit {
		v.trap.state.Regs = &v.frame
	}
	v.resume()
}

// finishAtHandler sets v.trap to the exception whose handler the guest has just
// entered with the registers regs, as seen from the code that raised it.
func (s *inPlace) finishAtHandler(regs probe.Regs) bool {
	v := s.v
	vector := s.end.vector
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
	if vector == x86.VectorPF {
		f.trap.CR2 = guest.GVA(v.sregs.CR2)
	}
	b := v.raw[:8*frameWords]
	if v.m.target().ReadMemory(root, f.frame, b) != nil {
		return false
	}
	v.frame = regs
	v.unpackFrame(&f, b)
	flags := v.frame.RFLAGS
	if !s.traced {
		flags &^= x86.FlagTF
	}
	flags |= s.held
	if home := uint64(s.end.moved.home(guest.GVA(v.frame.RIP))); flags != v.frame.RFLAGS || home != v.frame.RIP {
		v.frame.RFLAGS, v.frame.RIP = flags, home
		binary.LittleEndian.PutUint64(b[8*frameRIP:], home)
		binary.LittleEndian.PutUint64(b[8*frameRFLAGS:], v.frame.RFLAGS)
		if v.m.target().WriteMemory(root, f.frame, b) != nil {
			return false
		}
	}
	v.trap = f
	return true
}
