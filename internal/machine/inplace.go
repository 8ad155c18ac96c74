package machine

import (
	"errors"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// nestedLimit bounds how long guest code may run inside a hit, with the world
// stopped or a handler waiting.
const nestedLimit = time.Second

// errNestedTimeout: the guest did not come back within nestedLimit.
var errNestedTimeout = errors.New("the guest did not come back in time")

// runNested runs the guest from inside a hit until done says so, which is asked
// after every exit that is not a mere interruption; the exits that it does not
// claim are handled as usual. Timer interrupts stay away.
func (v *vcpu) runNested(done func() bool) error {
	expired := false
	timer := time.AfterFunc(nestedLimit, func() {
		v.m.mu.Lock()
		defer v.m.mu.Unlock()
		expired = true
		v.kick()
	})
	defer timer.Stop()
	if v.window {
		v.window = false
		v.kvm.RequestInterruptWindow(false)
	}
	for {
		if err := v.kvm.Run(&v.exit); err != nil {
			v.runFailed(err)
			return err
		}
		if v.exit.Reason == kvm.ReasonInterrupted {
			// A kick for the gate comes again: whoever waits does so until this
			// vCPU rests, and it will look at the gate by itself.
			v.kvm.ClearKick()
			v.m.mu.Lock()
			over := expired
			v.m.mu.Unlock()
			if over {
				return errNestedTimeout
			}
			continue
		}
		if done() {
			return nil
		}
		v.handle()
		if v.m.ended() {
			return ErrNotRunnable
		}
	}
}

// stepInPlace executes the one instruction at v.trap.state with the world
// stopped and the site unpatched, and tells the engine.
func (v *vcpu) stepInPlace() {
	stepped := false
	err := v.m.stopWorld(v, stopTimeout, func() (err error) {
		stepped, err = v.stepAlone()
		return err
	})
	switch {
	case errors.Is(err, ErrClosed), errors.Is(err, ErrNotRunnable):
	case err != nil:
		v.crashed(CrashHost, fmt.Sprintf("the instruction at %#x could not be stepped in place: %v", v.trap.state.Regs.RIP, err))
	case stepped:
		v.n.inPlace.inc()
		v.obey(v.m.engine.Stepped(v.id, v.trap.state))
	}
}

// stepAlone does the work of stepInPlace while the world is stopped. On success
// v.trap is the trap behind the instruction. False means that the guest went
// elsewhere, to its own handler of an exception that the instruction raised.
func (v *vcpu) stepAlone() (bool, error) {
	m := v.m
	text := m.text()
	site := guest.GVA(v.trap.state.Regs.RIP)
	orig, ok := m.engine.Original(site)
	if ok {
		// Another stopper may have taken the probe off while this one waited.
		switch err := text.Patch(site, []byte{opInt3}, []byte{orig}); {
		case errors.As(err, new(*guest.TextMismatchError)):
			ok = false
		case err != nil:
			return false, err
		}
	}
	tf := m.host.Traps.CPL(v.trap.state.CPL).Step == DeliveryWorks
	var temps []guest.GVA
	var err error
	if tf {
		err = v.kvm.SetGuestDebug(kvm.GuestDebug{Control: guestDebug | kvm.DebugSingleStep})
	} else {
		temps, err = v.plantInt3s(text, site)
	}
	if err == nil {
		v.resume()
		err = v.runNested(func() bool { return v.behind(tf, site, temps) })
	}
	if tf {
		err = errors.Join(err, v.kvm.SetGuestDebug(kvm.GuestDebug{Control: guestDebug}))
	}
	for _, a := range temps {
		err = errors.Join(err, text.Patch(a, []byte{opInt3}, m.image.Load().Code(a, 1)))
	}
	if ok {
		err = errors.Join(err, text.Patch(site, []byte{orig}, []byte{opInt3}))
	}
	if errors.Is(err, errNestedTimeout) {
		m.log.Warn("an instruction stepped in place did not end; the guest goes on elsewhere", "vcpu", v.id, "addr", site)
		return false, nil
	}
	return err == nil, err
}

// behind reports whether the last exit is the trap behind the instruction at
// site, and if so makes v.trap that trap, with RIP where the guest goes on.
func (v *vcpu) behind(tf bool, site guest.GVA, temps []guest.GVA) bool {
	if !v.arrived() {
		return false
	}
	v.n.traps.inc()
	rip := guest.GVA(v.trap.state.Regs.RIP)
	switch v.trap.trap.Kind {
	case probe.TrapStep:
		return tf && rip != site
	case probe.TrapBreakpoint:
		for _, a := range temps {
			if a == rip {
				return true
			}
		}
	}
	return false
}

// plantInt3s puts an int3 at every place where the instruction at site can go
// next, and returns those places. A place that has an int3 already, a probe's
// own, serves as it is.
func (v *vcpu) plantInt3s(text guest.Text, site guest.GVA) ([]guest.GVA, error) {
	img := v.m.image.Load()
	inst, err := insn.Decode(img.Code(site, insn.MaxLen))
	if err != nil {
		return nil, err
	}
	next := site + guest.GVA(inst.Len)
	code := img.Code(next, 1)
	if len(code) == 0 {
		return nil, fmt.Errorf("no code behind the instruction at %v", site)
	}
	if code[0] == opInt3 {
		return nil, fmt.Errorf("an int3 of the guest's own stands behind the instruction at %v", site)
	}
	switch err := text.Patch(next, code, []byte{opInt3}); {
	case errors.As(err, new(*guest.TextMismatchError)):
		return nil, fmt.Errorf("text behind the instruction: %w", err)
	case err != nil:
		return nil, err
	}
	return []guest.GVA{next}, nil
}
