package session

import (
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// Spec asks for a probe, or for the probes that a pattern or a place in the source stands for.
type Spec struct {
	// Def is one line of the kprobe_events language: "p:myread vfs_read fd=%di:s32". The line "-:myread" detaches
	// probes; the other fields mean nothing then. A blank line, or a comment, does nothing.
	Def string

	// Disabled registers the probe without arming it.
	Disabled bool

	// Post makes a second record with the registers after the probed instruction; Regs records the registers with
	// every hit, Stack the address of the guest and its callers.
	Post, Regs, Stack bool

	// Space binds the probe to the address space with this top-level page table (CR3); 0 means all.
	Space guest.GPA

	// Filter is an expression over the definition's values and the fields of every record. A hit for which it is false
	// counts as filtered.
	Filter string

	// OnHost serves the probe at an exit, even if it could be served in the guest.
	OnHost bool

	// Stop stops the vCPU (StopVCPU) or all vCPUs (StopAll) at each hit that passes the filter.
	Stop string

	// AtRets puts probes at the instructions by which a function is left, instead of replacing its return address.
	AtRets bool

	// Emulate serves a watch by protecting the page, or by a breakpoint, instead of by a debug register.
	Emulate bool

	// Args makes a jprobe that records the function's first Args arguments, 1 to MaxArgs.
	Args int

	// Mirror makes a jprobe: this function of the guest runs before the probed one, with the same registers and stack. It
	// ends in MirrorEnd ("" means jprobe_return). Then MirrorStack bytes of the stack are restored; 0 means
	// probe.DefaultJprobeStack.
	Mirror, MirrorEnd string
	MirrorStack       int

	// Strict rejects a pattern if one of the matching functions cannot be probed. Otherwise such functions are left out.
	Strict bool

	// Override makes the function return a value without running. It changes what the guest does, so Unsafe must be set.
	Override *Override
	Unsafe   bool

	// Stay keeps a probe that was attached with an Owner after the owner's end.
	Stay bool
}

// The values of Spec.Stop.
const (
	StopVCPU = "vcpu"
	StopAll  = "all"
)

// MaxArgs is the largest Spec.Args.
const MaxArgs = 32

// Override makes a function return Value without running, at some of the probe's hits: those that pass its filter and that the
// other fields choose, as the attributes of the kernel's fault injection do.
type Override struct {
	Value       int64    // returned by the function
	Probability *float64 // percent of the hits, 0 to 100; nil means all
	Interval    uint64   // every Nth hit; 0 means 1
	Times       *int64   // at most this many hits, of all vCPUs; nil and -1 mean no limit
	After       uint64   // hits that are skipped first
	Seed        uint64   // of the choice by Probability; with 0 the Session chooses one
}

// kindOption is an option that not every kind of definition has.
type kindOption struct {
	given func(*Spec) bool
	kinds string            // the letters of the kinds that have it
	why   map[string]advice // why a kind does not have it, by the kind's letter or "" for all of them
}

// advice is the text and the detail of an Error.
type advice struct{ text, detail string }

// kindOptions are all such options. Others are of every kind.
var kindOptions = []kindOption{
	{func(s *Spec) bool { return s.Args != 0 || s.Mirror != "" }, "p", map[string]advice{"": {"only a p definition can be a jprobe", "leave out args and mirror"}}},
	{func(s *Spec) bool { return s.Override != nil }, "p", map[string]advice{"": {"only a p definition can make its function return", "a function returns early at its entry: p FUNCTION"}}},
	{func(s *Spec) bool { return s.Post }, "p", map[string]advice{
		"r": {"a return probe has no second record", "leave out post; with regs its record has the registers at the return"},
		"w": {"a watch has no second record", "leave out post: its record is from after the access"},
	}},
	{func(s *Spec) bool { return s.Space != 0 }, "pr", map[string]advice{"": {"a watch is for all address spaces", "leave out space"}}},
	{func(s *Spec) bool { return s.AtRets }, "r", map[string]advice{"": {"only an r definition has returns", "leave out --at-rets"}}},
	{func(s *Spec) bool { return s.Emulate }, "w", map[string]advice{"": {"only a watch can be emulated", "leave out emulate"}}},
}

// kindFits refuses options that the kind of probe does not have.
func kindFits(def *event.Def, spec Spec) error {
	kind := def.Kind.String()
	for i := range kindOptions {
		o := &kindOptions[i]
		if !o.given(&spec) || strings.Contains(o.kinds, kind) {
			continue
		}
		why, ok := o.why[kind]
		if !ok {
			why = o.why[""]
		}
		return unavailable(spec, why.text, why.detail)
	}
	return nil
}

// unavailable refuses an option of a definition.
func unavailable(spec Spec, text, detail string) error {
	return &Error{Code: CodeUnavailable, Errno: syscall.EOPNOTSUPP, Text: text, Detail: detail, Column: new(int), Command: defText(spec)}
}

// specFits refuses options that the kind of probe does not have, and such as do not fit together.
func specFits(def *event.Def, spec Spec) error {
	if err := jprobeValues(spec); err != nil {
		return err
	}
	if err := overrideValues(spec); err != nil {
		return err
	}
	of := spec
	of.AtRets = spec.AtRets && def.Kind != event.KindProbe // else it is one of the definitions that atRets has made
	if err := kindFits(def, of); err != nil {
		return err
	}
	switch {
	case spec.isJprobe() && spec.Post:
		return unavailable(spec, "a jprobe has no second record", "leave out post: attach a probe without args and mirror for it")
	case spec.Override == nil:
	case spec.AtRets:
		return unavailable(spec, "only a p definition can make its function return", "a function returns early at its entry: p FUNCTION")
	case spec.isJprobe():
		return unavailable(spec, "a jprobe cannot make its function return", "leave out args and mirror: a definition has arguments as $arg1")
	case spec.Post:
		return unavailable(spec, "an override skips the function, so there is no second record", "leave out post")
	}
	return nil
}

// isJprobe reports whether a jprobe is asked for. The definition language has no
// letter for it: it is a p definition with one of these options.
func (s *Spec) isJprobe() bool { return s.Args != 0 || s.Mirror != "" }

// jprobeValues refuses options of jprobes that are out of bounds or do not fit together. What they say about the
// guest is checked by the engine.
func jprobeValues(spec Spec) error {
	switch {
	case spec.Args < 0 || spec.Args > MaxArgs:
		return badValue("args is %d: 0 to %d", spec.Args, MaxArgs)
	case spec.MirrorStack < 0 || spec.MirrorStack > probe.MaxJprobeStack:
		return badValue("mirrorStack is %d: 0 to %d", spec.MirrorStack, probe.MaxJprobeStack)
	case spec.Mirror == "" && (spec.MirrorStack != 0 || spec.MirrorEnd != ""):
		return badValue("mirrorStack and mirrorEnd are about a mirror: mirror is missing")
	}
	return nil
}

// overrideValues refuses an override that is out of bounds or was not allowed.
func overrideValues(spec Spec) error {
	o := spec.Override
	switch {
	case o == nil && spec.Unsafe:
		return badValue("unsafe allows an override: override is missing")
	case o == nil:
		return nil
	case o.Probability != nil && !(*o.Probability >= 0 && *o.Probability <= 100):
		return badValue("probability is %v: 0 to 100 percent", *o.Probability)
	case o.Times != nil && *o.Times < -1:
		return badValue("times is %d: -1 for no limit, or how many", *o.Times)
	case !spec.Unsafe:
		return unavailable(spec, "an override changes what the guest does", "allow it with --unsafe")
	}
	return nil
}

// defText is a definition as error messages show it, its tokens one blank
// apart.
func defText(spec Spec) string { return strings.Join(strings.Fields(spec.Def), " ") }
