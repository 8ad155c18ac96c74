package http

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/server/jail"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Limits of a call.
const (
	maxCallArgs     = 6 // arguments in registers (System V ABI)
	defaultCallTime = 5 * time.Second
	maxCallTime     = time.Minute
)

func (s *server) getVersion(w http.ResponseWriter, r *http.Request) error {
	v := api.Build()
	v.PID = s.pid
	writeJSON(w, http.StatusOK, v)
	return nil
}

func (in *inspector) getHost(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, WireHost(in.guest.Host()))
	return nil
}

// WireHost returns the report in its wire form. guestprobe doctor uses it for
// a calibration of its own.
func WireHost(h host.Report) api.Host {
	traps := func(t host.TrapReport) api.TrapReport {
		return api.TrapReport{Int3: string(t.Int3), Inject: string(t.Inject), Step: string(t.Step), HWBreak: string(t.HWBreak), Watch: string(t.Watch)}
	}
	return api.Host{
		KVM: api.HostKVM{
			Usable: h.KVM.Usable, API: h.KVM.API, Path: h.KVM.Path, Reason: h.KVM.Reason, Hint: h.KVM.Hint, Vendor: h.KVM.Vendor,
			SyncRegs: h.KVM.SyncRegs, ReadonlyMem: h.KVM.Readonly, MaxVCPUs: h.KVM.MaxVCPUs, Elapsed: h.KVM.Elapsed,
		},
		Traps: api.HostTraps{CPL0: traps(h.Traps.CPL0), CPL3: traps(h.Traps.CPL3)},
		Jail:  jail.Host(),

		NoLinux: h.NoLinuxReason(),
	}
}

func (rc *runControl) getGuest(w http.ResponseWriter, r *http.Request) error {
	writeJSON(w, http.StatusOK, rc.wireGuest())
	return nil
}

func (rc *runControl) pauseGuest(w http.ResponseWriter, r *http.Request) error {
	if err := rejectBody(w, r); err != nil {
		return err
	}
	rc.resetMu.Lock()
	defer rc.resetMu.Unlock()
	if err := rc.guest.Pause(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, rc.wireGuest())
	return nil
}

func (rc *runControl) resumeGuest(w http.ResponseWriter, r *http.Request) error {
	var req api.ResumeGuest
	if err := readBody(w, r, &req, true); err != nil {
		return err
	}
	rc.resetMu.Lock()
	defer rc.resetMu.Unlock()
	if err := rc.free(); err != nil {
		return err
	}
	if d := rc.debugger.Load(); d != nil {
		d.forgetStops()
	}
	if req.VCPU != nil {
		g, err := rc.stepper()
		if err == nil {
			err = g.Continue(*req.VCPU)
		}
		if err != nil {
			return lookError(err)
		}
	} else if err := rc.resume(); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, rc.wireGuest())
	return nil
}

func (s *server) resetGuest(w http.ResponseWriter, r *http.Request) error {
	var req api.ResetGuest
	if err := readBody(w, r, &req, true); err != nil {
		return err
	}
	s.resetMu.Lock()
	defer s.resetMu.Unlock()
	// A reset does not begin when its client is gone. Once it has begun it is
	// completed, because a guest that is half reset cannot be used.
	if err := r.Context().Err(); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	reset, err := s.resetTo(req.To)
	if err != nil {
		return err
	}
	if err := s.resetGuestAndPrograms(context.WithoutCancel(r.Context()), reset); err != nil {
		return err
	}
	s.boots.Add(1)
	s.restorePending()
	s.probes.Notify() // scripts may be about it
	if !req.Paused && s.free() == nil {
		if err := s.resume(); err != nil {
			return fmt.Errorf("reset: %w", err)
		}
	}
	writeJSON(w, http.StatusOK, s.wireGuest())
	return nil
}

func (rc *runControl) callGuest(w http.ResponseWriter, r *http.Request) error {
	var req api.Call
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	fn, err := rc.callTarget(req)
	if err != nil {
		return err
	}
	if len(req.Args) > maxCallArgs {
		return badValue("call with %d arguments: at most %d travel in registers", len(req.Args), maxCallArgs)
	}
	timeout := defaultCallTime
	if ms := req.TimeoutMS; ms != nil {
		if *ms < 1 || int64(*ms) > maxCallTime.Milliseconds() {
			return badValue("timeoutMs %d: not in 1 to %d", *ms, maxCallTime.Milliseconds())
		}
		timeout = time.Duration(*ms) * time.Millisecond
	}
	args := make([]uint64, len(req.Args))
	for i, a := range req.Args {
		args[i] = uint64(a)
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	ret, err := rc.guest.Call(ctx, fn, args...)
	if err != nil {
		var call *machine.CallError
		if errors.As(err, &call) {
			err = call.Err // with the address; the name is more useful
		}
		err = fmt.Errorf("call %s: %w", rc.symbolize(fn), err)
		if call != nil && toAPI(err).Code == api.CodeInternal {
			return &api.Error{Code: api.CodeCallFailed, Errno: "EFAULT", Message: err.Error()} // another event in the guest ended the call
		}
		return err
	}
	writeJSON(w, http.StatusOK, api.CallResult{Ret: api.Hex(ret), Value: int64(ret)})
	return nil
}

// callTarget returns the function that a call names: the start of a kernel
// function, because a call into the middle of one, or into text of CPL3, only
// crashes the guest.
func (rc *runControl) callTarget(req api.Call) (guest.GVA, error) {
	img := rc.guest.Image()
	if (req.Symbol == "") == (req.Addr == 0) {
		return 0, badValue("call: exactly one of symbol and addr says which function")
	}
	fn := guest.GVA(req.Addr)
	if req.Symbol != "" {
		sym, err := img.Lookup(req.Symbol)
		if err != nil {
			return 0, toProbeError(img, req.Symbol, err)
		}
		fn = sym.Addr
	}
	if !img.IsText(fn) || img.IsUserText(fn) {
		return 0, badValue("call %s: not a function of the guest's kernel", rc.symbolize(fn))
	}
	if sym, ok := img.Find(fn); ok && sym.Addr != fn {
		return 0, badValue("call %s: not the start of a function", rc.symbolize(fn))
	}
	return fn, nil
}

// wireGuest describes the guest as it is now.
func (rc *runControl) wireGuest() api.Guest {
	st, stats, id := rc.guest.State(), rc.guest.Stats(), rc.guest.Image().ID()
	g := api.Guest{
		Jail: rc.jail, VM: rc.opt.vm,
		State: string(st.Phase), Boots: int(rc.boots.Load()),
		Image: rc.opt.imageName(), SHA256: hex.EncodeToString(id.SHA256[:]), BuildID: id.BuildID, Entry: api.Hex(id.Entry),
		VCPUs: len(st.VCPUs), Memory: rc.opt.memory, Cmdline: rc.opt.cmdline, TickUS: rc.opt.tick.Microseconds(),
		Probes: len(rc.probes.Probes()), Enabled: rc.probes.Armed(), Checks: st.Checks.Count, LogLinesLost: rc.logLost(),
	}
	if st.Phase == machine.PhaseExited && !st.Outside {
		code := int64(st.ExitCode)
		g.ExitCode = &code
	}
	if st.Crash != nil {
		g.Crash = wireCrash(st.Crash)
	}
	if l, ok := rc.guest.(kernelGuest); ok {
		if k, ok := l.Kernel(); ok {
			g.Kernel = &api.Kernel{Version: k.Version, System: k.System, Panic: k.Panic, Slide: api.Hex(k.Slide), Checked: k.Checked, Missing: k.Missing}
		}
	}
	for i, v := range st.VCPUs {
		c := api.CPUInfo{CPU: v.ID, State: string(v.Activity), RIP: api.Hex(v.RIP), Symbol: v.Symbol, Space: api.Hex(v.Space), Exits: map[string]uint64{}}
		if i < len(stats.VCPUs) {
			n := stats.VCPUs[i]
			if n.Exits != nil {
				c.Exits = n.Exits
			}
			c.Total, c.Hits, c.TrapExits, c.Foreign, c.InPlace, c.Ticks = n.Total, n.Hits, n.TrapExits, n.Foreign, n.InPlace, n.Ticks
		}
		if v.Stop != nil && v.Stop.By != nil {
			x := rc.wireStop(v.Stop)
			c.Stop = &x
		}
		g.CPUs = append(g.CPUs, c)
	}
	return g
}

func wireCrash(c *machine.CrashReport) *api.Crash {
	out := &api.Crash{CPU: c.CPU, Kind: string(c.Kind), Reason: c.Text, RIP: api.Hex(c.Regs.RIP), Symbol: c.Symbol, RegsLost: c.RegsLost, Regs: wireRegs(&c.Regs), Report: c.String()}
	for _, l := range c.Code {
		out.Code = append(out.Code, l.String())
	}
	return out
}
