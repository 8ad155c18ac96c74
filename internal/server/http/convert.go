package http

import (
	"encoding/hex"
	"errors"
	"iter"
	"log/slog"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// sessionOptions describes a guest to the session of its probes. Maps may use
// that much memory.
func sessionOptions(g Guest, log *slog.Logger, maps int64) session.Options {
	o := session.Options{
		Log: log, MapMemory: maps, Types: g.Types, Source: g.Source, Exits: machine.ExitReasons(),
		Hold: func() (func() error, error) { return hold(g) },
	}
	if l, ok := g.(linuxGuest); ok && l.kernel() != nil {
		o.Kernel, o.Tasks = l.kernel().programs, l.kernel().reader
	}
	if g, ok := g.(sharedGuest); ok {
		o.Clock = func(now func() int64) (session.Clock, error) {
			c, err := g.Clock(now)
			return session.Clock(c), err
		}
	}
	return o
}

// sharedGuest has the methods of a Guest whose memory programs can share.
type sharedGuest interface {
	program.Shared
	Clock(now func() int64) (machine.Clock, error)
}

// specOf converts a request for a probe.
func specOf(s *api.ProbeSpec) session.Spec {
	return session.Spec{
		Def: s.Def, Disabled: s.Disabled, Post: s.Post, Regs: s.Regs, Stack: s.Stack, Space: guest.GPA(s.Space), Filter: s.Filter, OnHost: s.OnHost, Stop: s.Stop,
		AtRets: s.AtRets, Emulate: s.Emulate, Args: s.Args, Mirror: s.Mirror, MirrorEnd: s.MirrorEnd, MirrorStack: s.MirrorStack, Strict: s.Strict,
		Override: (*session.Override)(s.Override), Unsafe: s.Unsafe, Stay: s.Stay,
	}
}

func probeSpecs(specs []api.ProbeSpec) []session.Spec {
	out := make([]session.Spec, len(specs))
	for i := range specs {
		out[i] = specOf(&specs[i])
	}
	return out
}

// wireSpec is the inverse of specOf.
func wireSpec(s *session.Spec) api.ProbeSpec {
	return api.ProbeSpec{
		Def: s.Def, Disabled: s.Disabled, Post: s.Post, Regs: s.Regs, Stack: s.Stack, Space: api.Hex(s.Space), Filter: s.Filter, OnHost: s.OnHost, Stop: s.Stop,
		AtRets: s.AtRets, Emulate: s.Emulate, Args: s.Args, Mirror: s.Mirror, MirrorEnd: s.MirrorEnd, MirrorStack: s.MirrorStack, Strict: s.Strict,
		Override: (*api.Override)(s.Override), Unsafe: s.Unsafe, Stay: s.Stay,
	}
}

// objectSpec converts a request for the programs of an object file.
func objectSpec(r *api.AttachProgram) session.ObjectSpec {
	return session.ObjectSpec{
		File: r.Object, Section: r.Section, At: r.At, SkipMissing: r.SkipMissing, Set: r.Set, MapEntries: r.MapEntries, OnHost: r.OnHost, Disabled: r.Disabled,
		Space: guest.GPA(r.Space), Strict: r.Strict, Unsafe: r.Unsafe,
	}
}

// wireObject is the inverse of objectSpec.
func wireObject(o *session.ObjectSpec) api.AttachProgram {
	return api.AttachProgram{
		Object: o.File, Section: o.Section, At: o.At, SkipMissing: o.SkipMissing, Set: o.Set, MapEntries: o.MapEntries, OnHost: o.OnHost, Disabled: o.Disabled,
		Space: api.Hex(o.Space), Strict: o.Strict, Unsafe: o.Unsafe,
	}
}

// wireOutline describes a probe with the fields of an outline.
func wireOutline(i *session.Info) api.Probe {
	if i.Kind == 'w' {
		return wireProbe(i)
	}
	p := api.Probe{
		ID: i.ID, Name: i.Name, Kind: string(rune(i.Kind)), Symbol: i.Symbol, Offset: i.Offset, Addr: api.Hex(i.Addr),
		Enabled: i.Enabled, Armed: i.Armed, Gone: i.Gone, Optimized: i.Site.Optimized, Plan: i.Plan, Runs: api.RunsOnHost, InUse: i.InUse, Stats: wireStats(&i.Stats),
	}
	if i.Site.InGuest {
		p.Runs = api.RunsInGuest
	}
	return p
}

// wireProbe describes a probe.
func wireProbe(i *session.Info) api.Probe {
	if i.Kind == 'w' {
		return wireWatch(i)
	}
	p, x := wireOutline(i), &i.Site
	p.Def, p.User, p.Space, p.Size, p.Parts = i.Spec.Def, x.User, api.Hex(x.Space), i.Size, i.Parts
	p.Pending, p.Changed = x.Pending, x.Changed
	if p.Tracepoint = i.Tracepoint; p.Tracepoint != "" {
		p.Pending = i.Enabled && !i.TracepointOn
	}
	p.Post, p.Regs, p.Stack, p.Stay, p.Stop, p.Origin = i.Spec.Post, i.Spec.Regs, i.Spec.Stack, i.Stay, i.Spec.Stop, i.Label
	p.MaxActive, p.HighWater = x.MaxActive, x.HighWater
	p.Insn = hex.EncodeToString(x.Insn)
	if i.MirrorStack != 0 {
		p.Mirror, p.MirrorStack = i.Spec.Mirror, i.MirrorStack
	}
	p.Filter, p.Program, p.OnHost = i.Spec.Filter, wireProgram(i.Program), i.OnHost
	if i.Override != nil {
		p.Override = &api.ProbeOverride{Override: api.Override(*i.Override), Injected: i.Injected}
	}
	p.Region = x.Region
	if u := x.Unoptimized; u.Reason != "" {
		p.Unoptimized = &api.Unoptimized{Reason: u.Reason, Meaning: u.Meaning(), Detail: u.Detail}
	}
	return p
}

// wireWatch describes a watch.
func wireWatch(i *session.Info) api.Probe {
	p := api.Probe{
		ID: i.ID, Name: i.Name, Def: i.Spec.Def, Kind: "w",
		Symbol: i.Symbol, Offset: i.Offset, Size: i.Size, Addr: api.Hex(i.Addr), User: i.Watch.User,
		Enabled: i.Enabled, Armed: i.Armed, Gone: i.Gone,
		Regs: i.Spec.Regs, Stack: i.Spec.Stack, Stay: i.Stay, Origin: i.Label, Filter: i.Spec.Filter,
		Access: i.Watch.Access.String(), Len: i.Watch.Len, Cost: i.Watch.Cost, Plan: i.Plan, Stats: wireStats(&i.Stats),
	}
	if p.Program = wireProgram(i.Program); p.Program != nil {
		p.Runs, p.OnHost = api.RunsOnHost, i.OnHost
	}
	return p
}

// wireProgram describes the program of a probe. It returns nil for nil.
func wireProgram(p *session.ProgramInfo) *api.ProgramInfo {
	if p == nil {
		return nil
	}
	out := &api.ProgramInfo{
		Name: p.Name, Section: p.Section, Maps: p.Maps, Runs: p.Runs, InGuest: p.InGuest, Faults: p.Faults, Missed: p.Missed, Fault: p.Fault,
		Instructions: p.Instructions, CodeBytes: p.CodeBytes, Budget: p.Budget, Steps: p.Steps,
	}
	for _, w := range p.Warnings {
		out.Warnings = append(out.Warnings, api.ProgramWarning{Instruction: w.Index, Text: w.Text, What: w.What, Source: w.Source})
	}
	return out
}

func wireStats(s *session.Stats) api.Stats {
	out := api.Stats{
		Counts: wireCounts(s.Stats), Abandoned: s.Abandoned, UnderWay: s.UnderWay, Events: s.Events, Lost: s.Lost, Rejected: s.Rejected,
	}
	for i, c := range s.CPUs {
		out.CPUs = append(out.CPUs, api.CPUStats{CPU: i, Counts: wireCounts(c)})
	}
	return out
}

func wireCounts(s probe.Stats) api.Counts {
	return api.Counts{
		Hits: s.Hits, Handled: s.Handled, Filtered: s.Filtered, Missed: s.Missed, Elsewhere: s.Elsewhere, Skipped: s.Skipped,
		SecondExits: s.SecondExits, Faults: s.Faults, Panics: s.Panics, BadAccesses: s.BadAccesses,
		Returns: s.Returns,
	}
}

// wireInfos describes probes.
func wireInfos(is []session.Info) []api.Probe {
	if is == nil {
		return nil
	}
	out := make([]api.Probe, len(is))
	for k := range is {
		out[k] = wireProbe(&is[k])
	}
	return out
}

// wireProbes describes probes, one at a time.
func wireProbes(is iter.Seq[session.Info]) iter.Seq[api.Probe] { return convertEach(is, wireProbe) }

// wireOutlines is wireProbes for outlines.
func wireOutlines(is iter.Seq[session.Info]) iter.Seq[api.Probe] { return convertEach(is, wireOutline) }

func convertEach(is iter.Seq[session.Info], how func(*session.Info) api.Probe) iter.Seq[api.Probe] {
	return func(yield func(api.Probe) bool) {
		for i := range is {
			if !yield(how(&i)) {
				return
			}
		}
	}
}

// wireAttached returns the rest of an answer to a request that attaches probes.
func wireAttached(a *session.Attached) api.ProbeList {
	l := api.ProbeList{Detached: wireInfos(a.Detached)}
	for _, x := range a.Skipped {
		l.Skipped = append(l.Skipped, api.Skipped{Def: x.Def, Error: *toAPI(x.Err)})
	}
	return l
}

// hold pauses the guest if it runs, and returns a function that resumes it. Callers hold resetMu.
func hold(g Guest) (resume func() error, err error) {
	if g.State().Phase != machine.PhaseRunning {
		return func() error { return nil }, nil
	}
	var late *machine.StopTimeoutError
	if err := g.Pause(); errors.As(err, &late) {
		return nil, errors.Join(err, g.Resume())
	}
	return func() error {
		if g.State().Phase != machine.PhasePaused {
			return nil // it has ended
		}
		return g.Resume()
	}, nil
}
