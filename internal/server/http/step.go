package http

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Limits of a step.
const (
	defaultSteps = 5 * time.Second
	maxStepTime  = time.Minute
)

// stepping is a Guest whose vCPUs can be stopped one by one; see machine.Machine.
type stepping interface {
	looking
	Stops() []machine.Stop
	Continue(cpu int) error
	Step(ctx context.Context, cpu, n int) (int, error)
	RunTo(ctx context.Context, cpu int, addr guest.GVA, sp uint64) (reached bool, err error)
	StopAll(c *probe.Context)
}

// stepper returns the guest as a stepping, or an error.
func (rc *runControl) stepper() (stepping, error) {
	g, ok := rc.guest.(stepping)
	if !ok {
		return nil, &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "the vCPUs of this guest cannot be stopped one by one"}
	}
	return g, nil
}

func (rc *runControl) stepGuest(w http.ResponseWriter, r *http.Request) error {
	var req api.Step
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	g, err := rc.stepper()
	if err != nil {
		return err
	}
	timeout := defaultSteps
	if ms := req.TimeoutMS; ms != nil {
		if *ms < 1 || int64(*ms) > maxStepTime.Milliseconds() {
			return badValue("timeoutMs %d: not in 1 to %d", *ms, maxStepTime.Milliseconds())
		}
		timeout = time.Duration(*ms) * time.Millisecond
	}
	n := max(req.Count, 1)
	switch {
	case req.Count < 0 || req.Count > api.MaxSteps:
		return badValue("count %d: not in 1 to %d", req.Count, api.MaxSteps)
	case req.Count != 0 && req.How != api.StepInto && req.How != api.StepNext:
		return badValue("count: %s and %s have one", api.StepInto, api.StepNext)
	case (req.At != "") != (req.How == api.StepUntil):
		return badValue("at: %s needs one, and nothing else has one", api.StepUntil)
	}
	cpu, err := rc.chooseVCPU(g, req.VCPU)
	if err == nil {
		rc.resetMu.Lock()
		err = rc.free()
		rc.resetMu.Unlock()
	}
	if err != nil {
		return err
	}
	if rc.runs(cpu) { // where it happens to be now decides nothing
		return lookError(fmt.Errorf("vcpu %d: %w", cpu, machine.ErrNotStopped))
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	out := api.Stepped{CPU: cpu, Reached: true}
	switch req.How {
	case api.StepInto:
		out.Steps, err = g.Step(ctx, cpu, n)
	case api.StepNext:
		for out.Reached && out.Steps < n && err == nil {
			if out.Reached, err = rc.stepOver(ctx, g, cpu); err == nil {
				out.Steps++
			}
		}
	case api.StepFinish:
		out.Reached, err = rc.finish(ctx, g, cpu)
	case api.StepUntil:
		var addr guest.GVA
		err = rc.look(func(l *machine.Look) (err error) {
			addr, err = lookAt{at: req.At, vcpu: cpu}.addr(rc.inspector, l)
			if err == nil && addr == 0 {
				err = badValue("at %q: nothing can stop at address 0", req.At)
			}
			return err
		})
		if err == nil {
			out.Reached, err = g.RunTo(ctx, cpu, addr, 0)
		}
	default:
		return badValue("how %q: not %s, %s, %s or %s", req.How, api.StepInto, api.StepNext, api.StepFinish, api.StepUntil)
	}
	if err != nil {
		return stepError(err, out.Steps, timeout)
	}
	if err := rc.describePlace(&out, req.How); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// runs reports whether a vCPU of a running guest is not stopped.
func (rc *runControl) runs(cpu int) bool {
	st := rc.guest.State()
	return st.Phase == machine.PhaseRunning && cpu >= 0 && cpu < len(st.VCPUs) && st.VCPUs[cpu].Stop == nil
}

// stepError converts the error of a step that did not finish into an API error.
func stepError(err error, steps int, timeout time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &api.Error{Code: api.CodeStepRunning, Errno: "ETIMEDOUT", Message: fmt.Sprintf("the vCPU has not come there within %v, after %d instructions", timeout, steps),
			Detail: "after a step or next that ended it is stopped; after finish and until it runs on"}
	}
	return lookError(err)
}

// chooseVCPU returns the vCPU for a request.
func (rc *runControl) chooseVCPU(g stepping, named *int) (int, error) {
	if named != nil {
		return *named, nil
	}
	switch stops := g.Stops(); {
	case len(stops) == 1:
		return stops[0].CPU, nil
	case len(stops) > 1:
		return 0, badValue("%d vCPUs are stopped: say which one", len(stops))
	}
	return 0, nil // it may be paused
}

// stepOver executes one instruction. It executes a call up to its return.
func (rc *runControl) stepOver(ctx context.Context, g stepping, cpu int) (reached bool, err error) {
	var next guest.GVA
	var sp uint64
	err = rc.look(func(l *machine.Look) error {
		r, inst, err := nextInst(l, cpu)
		if err != nil {
			return err
		}
		if c := inst.Class(); c == x86.ClassCall || c == x86.ClassCallInd {
			next, sp = guest.GVA(r.Regs.RIP)+guest.GVA(inst.Len), r.Regs.RSP
		}
		return nil
	})
	switch {
	case err != nil:
		return false, err
	case next != 0:
		return g.RunTo(ctx, cpu, next, sp)
	}
	_, err = g.Step(ctx, cpu, 1)
	return true, err
}

// nextInst returns the registers of a vCPU, and its next instruction. The
// instruction has length 0 if it is not known.
func nextInst(l *machine.Look, cpu int) (r machine.Registers, inst x86.Inst, err error) {
	if r, err = l.Registers(cpu); err != nil {
		return r, inst, err
	}
	code := make([]byte, x86.MaxLen)
	n, err := l.Read(guest.GPA(r.System.CR3), guest.GVA(r.Regs.RIP), code, false)
	if n == 0 {
		return r, inst, err
	}
	inst, _ = x86.Decode(code[:n])
	return r, inst, nil
}

// finish lets a vCPU run until its function has returned.
func (rc *runControl) finish(ctx context.Context, g stepping, cpu int) (reached bool, err error) {
	var to guest.GVA
	var sp uint64
	err = rc.look(func(l *machine.Look) error {
		frames, _, err := l.Stack(cpu, 2)
		if err == nil && (len(frames) < 2 || frames[1].Exact) {
			err = &api.Error{Code: api.CodeBadValue, Errno: "EINVAL", Message: "the function has no caller that is known: 'guestprobe bt' shows what there is"}
		}
		if err == nil {
			to, sp = guest.GVA(frames[1].PC), frames[1].Regs[guest.FrameRSP]
		}
		return err
	})
	if err != nil {
		return false, err
	}
	reached, err = g.RunTo(ctx, cpu, to, sp)
	if e := (*probe.Error)(nil); errors.As(err, &e) && e.Code == probe.CodeNoSymbolAt {
		err = &api.Error{Code: api.CodeBadValue, Errno: "EINVAL", Message: fmt.Sprintf("the function is not to return: its caller ends with the call, and %v is no code", to)}
	}
	return reached, err
}

// describePlace fills in the vCPU's position.
func (rc *runControl) describePlace(out *api.Stepped, how string) error {
	names := newNamer(rc.guest)
	return rc.look(func(l *machine.Look) error {
		r, inst, err := nextInst(l, out.CPU)
		if err != nil {
			return err
		}
		rip := guest.GVA(r.Regs.RIP)
		out.RIP, out.Symbol = api.Hex(rip), rc.nearSymbol(rip)
		if inst.Len > 0 {
			out.Text = instText(names.img, &inst, rip)
		}
		if names.info != nil {
			if file, line, ok := names.info.Line(uint64(rip) - names.by); ok {
				out.Source = fmt.Sprintf("%s:%d", file, line)
			}
		}
		if how == api.StepFinish && out.Reached {
			ret := api.Hex(r.Regs.RAX)
			out.Ret = &ret
		}
		return nil
	})
}
