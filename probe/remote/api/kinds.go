package api

import "strings"

// Kinds of definitions, by their letter in the language of kprobe_events.
const (
	KindProbe  = "p"
	KindReturn = "r"
	KindWatch  = "w"
)

// KindOption is an option of ProbeSpec that not every kind of definition has. The daemon refuses it for the others, and
// guestprobe leaves it out where one command attaches definitions of several kinds: both by this table.
type KindOption struct {
	Name  string // of the field in JSON
	Flag  string // of guestprobe
	Kinds string // the letters of the kinds that have it

	Given func(*ProbeSpec) bool
	Clear func(*ProbeSpec)

	// Why a kind does not have it, and what to do, by the kind's letter or "" for all of them.
	Refusals map[string]Refusal
}

// Refusal is the message and the detail of an Error.
type Refusal struct{ Message, Detail string }

// Has reports whether definitions of this kind have the option.
func (o *KindOption) Has(kind string) bool { return kind != "" && strings.Contains(o.Kinds, kind) }

// Refusal returns why a kind does not have the option.
func (o *KindOption) Refusal(kind string) Refusal {
	if r, ok := o.Refusals[kind]; ok {
		return r
	}
	return o.Refusals[""]
}

// KindOptions are all such options. Others are of every kind.
var KindOptions = []KindOption{
	{
		"args", "args", KindProbe,
		func(s *ProbeSpec) bool { return s.Args != 0 },
		func(s *ProbeSpec) { s.Args = 0 },
		map[string]Refusal{"": {"only a p definition can be a jprobe", "leave out args and mirror"}},
	},
	{
		"mirror", "mirror", KindProbe,
		func(s *ProbeSpec) bool { return s.Mirror != "" },
		func(s *ProbeSpec) { s.Mirror, s.MirrorEnd, s.MirrorStack = "", "", 0 },
		map[string]Refusal{"": {"only a p definition can be a jprobe", "leave out args and mirror"}},
	},
	{
		"override", "override", KindProbe,
		func(s *ProbeSpec) bool { return s.Override != nil },
		func(s *ProbeSpec) { s.Override, s.Unsafe = nil, false },
		map[string]Refusal{"": {"only a p definition can make its function return", "a function returns early at its entry: p FUNCTION"}},
	},
	{
		"post", "post", KindProbe,
		func(s *ProbeSpec) bool { return s.Post },
		func(s *ProbeSpec) { s.Post = false },
		map[string]Refusal{
			KindReturn: {"a return probe has no second record", "leave out post; with regs its record has the registers at the return"},
			KindWatch:  {"a watch has no second record", "leave out post: its record is from after the access"},
		},
	},
	{
		"space", "space", KindProbe + KindReturn,
		func(s *ProbeSpec) bool { return s.Space != 0 },
		func(s *ProbeSpec) { s.Space = 0 },
		map[string]Refusal{"": {"a watch is for all address spaces", "leave out space"}},
	},
	{
		"atRets", "at-rets", KindReturn,
		func(s *ProbeSpec) bool { return s.AtRets },
		func(s *ProbeSpec) { s.AtRets = false },
		map[string]Refusal{"": {"only an r definition has returns", "leave out --at-rets"}},
	},
	{
		"emulate", "emulate", KindWatch,
		func(s *ProbeSpec) bool { return s.Emulate },
		func(s *ProbeSpec) { s.Emulate = false },
		map[string]Refusal{"": {"only a watch can be emulated", "leave out emulate"}},
	},
}

// KindOf returns the letter of a definition's kind, "" for other lines.
func KindOf(def string) string {
	def = strings.TrimSpace(def)
	if def == "" || !strings.Contains(KindProbe+KindReturn+KindWatch, def[:1]) {
		return ""
	}
	return def[:1]
}
