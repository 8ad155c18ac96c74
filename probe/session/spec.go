package session

import (
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// Spec requests a probe, or the probes of a pattern or a place in the source.
type Spec struct {
	// Def is one line of the kprobe_events language: "p:myread vfs_read fd=%di:s32".
	// The line "-:myread" detaches probes; the other fields are then ignored. A blank
	// line, or a comment, has no effect.
	Def string

	// Disabled registers the probe without arming it.
	Disabled bool

	// Post makes a second record with the registers after the probed instruction;
	// Regs records the registers with every hit, Stack the address of the guest and
	// its callers.
	Post, Regs, Stack bool

	// Space binds the probe to the address space with this top-level page table (CR3); 0 means all.
	Space guest.GPA

	// Filter is an expression over the definition's values and the fields of every
	// record. A hit for which it is false counts as filtered.
	Filter string

	// OnHost handles the probe at an exit, even if it could be handled in the guest.
	OnHost bool

	// Stop stops the vCPU (StopVCPU) or all vCPUs (StopAll) at each hit that passes the filter.
	Stop string

	// AtRets probes the instructions that leave a function, instead of replacing its
	// return address.
	AtRets bool

	// Emulate implements a watch by protecting the page, or by a breakpoint, instead
	// of by a debug register.
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

	// Override makes the function return a value without running. It changes the
	// guest, so Unsafe must be set.
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

// Override makes a function return Value without running, at some of the probe's
// hits: those that pass its filter and are selected by the other fields, which work
// like the attributes of the kernel's fault injection.
type Override struct {
	Value       int64    // returned by the function
	Probability *float64 // percent of the hits, 0 to 100; nil means all
	Interval    uint64   // every Nth hit; 0 means 1
	Times       *int64   // at most this many hits, of all vCPUs; nil and -1 mean no limit
	After       uint64   // initial hits to skip
	Seed        uint64   // for the choice by Probability; 0: the Session chooses one
}

// KindOption is an option of Spec that only some kinds of definition support. Attach
// rejects it for the others; a command with definitions of several kinds can omit it
// for those.
type KindOption struct {
	Name  string // of the field, in JSON: "atRets"
	Kinds string // the letters of the kinds that support it

	given    func(*Spec) bool
	refusals map[string]advice // why a kind does not support it, by the kind's letter or "" for all of them
}

// advice is the text and the detail of an Error.
type advice struct{ text, detail string }

// Has reports whether definitions of this kind support the option.
func (o *KindOption) Has(kind event.Kind) bool { return strings.ContainsRune(o.Kinds, rune(kind)) }

// Refusal returns why a kind does not support the option, and what to do.
func (o *KindOption) Refusal(kind event.Kind) (text, detail string) {
	why, ok := o.refusals[kind.String()]
	if !ok {
		why = o.refusals[""]
	}
	return why.text, why.detail
}

// KindOptions are all such options. All kinds support the others.
var KindOptions = []KindOption{
	{"args", "p", func(s *Spec) bool { return s.Args != 0 }, map[string]advice{"": {"only a p definition can be a jprobe", "leave out args and mirror"}}},
	{"mirror", "p", func(s *Spec) bool { return s.Mirror != "" }, map[string]advice{"": {"only a p definition can be a jprobe", "leave out args and mirror"}}},
	{"override", "p", func(s *Spec) bool { return s.Override != nil }, map[string]advice{"": {"only a p definition can make its function return", "a function returns early at its entry: p FUNCTION"}}},
	{"post", "p", func(s *Spec) bool { return s.Post }, map[string]advice{
		"r": {"a return probe has no second record", "leave out post; with regs its record has the registers at the return"},
		"w": {"a watch has no second record", "leave out post: its record is from after the access"},
		"t": {"a tracepoint has no second record", "leave out post"},
	}},
	{"space", "prt", func(s *Spec) bool { return s.Space != 0 }, map[string]advice{"": {"a watch is for all address spaces", "leave out space"}}},
	{"atRets", "r", func(s *Spec) bool { return s.AtRets }, map[string]advice{"": {"only an r definition has returns", "leave out --at-rets"}}},
	{"emulate", "w", func(s *Spec) bool { return s.Emulate }, map[string]advice{"": {"only a watch can be emulated", "leave out emulate"}}},
}

// kindFits rejects options that the kind of probe does not support.
func kindFits(def *event.Def, spec Spec) error {
	for i := range KindOptions {
		if o := &KindOptions[i]; o.given(&spec) && !o.Has(def.Kind) {
			text, detail := o.Refusal(def.Kind)
			return unavailableError(spec, text, detail)
		}
	}
	return nil
}

// unavailableError rejects an option of a definition.
func unavailableError(spec Spec, text, detail string) error {
	return &Error{Code: CodeUnavailable, Errno: syscall.EOPNOTSUPP, Text: text, Detail: detail, Column: new(int), Command: defText(spec)}
}

// specFits rejects options that the kind of probe does not support, and combinations
// that are not possible.
func specFits(def *event.Def, spec Spec) error {
	if err := jprobeValues(spec); err != nil {
		return err
	}
	if err := overrideValues(spec); err != nil {
		return err
	}
	of := spec
	of.AtRets = spec.AtRets && def.Kind != event.KindProbe // otherwise it is one of the definitions made by makeAtRets
	if err := kindFits(def, of); err != nil {
		return err
	}
	switch {
	case spec.isJprobe() && spec.Post:
		return unavailableError(spec, "a jprobe has no second record", "leave out post: attach a probe without args and mirror for it")
	case spec.Override == nil:
	case spec.AtRets:
		return unavailableError(spec, "only a p definition can make its function return", "a function returns early at its entry: p FUNCTION")
	case spec.isJprobe():
		return unavailableError(spec, "a jprobe cannot make its function return", "leave out args and mirror: a definition has arguments as $arg1")
	case spec.Post:
		return unavailableError(spec, "an override skips the function, so there is no second record", "leave out post")
	}
	return nil
}

// isJprobe reports whether a jprobe is requested. The definition language has no
// letter for it: it is a p definition with one of these options.
func (s *Spec) isJprobe() bool { return s.Args != 0 || s.Mirror != "" }

// jprobeValues rejects options of jprobes that are out of bounds or cannot be
// combined. The engine checks them against the guest.
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

// overrideValues rejects an override that is out of bounds or was not allowed.
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
		return unavailableError(spec, "an override changes what the guest does", "allow it with --unsafe")
	}
	return nil
}

// defText formats a definition for error messages.
func defText(spec Spec) string { return event.ReadCommand(spec.Def).String() }
