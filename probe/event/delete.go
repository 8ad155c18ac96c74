package event

import (
	"slices"
	"strings"
)

// Deletion is a command that takes probes away: "-:[group/]event [place
// [args]]", or "-:group/" for a whole group.
type Deletion struct {
	Group string   // empty: any
	Event string   // empty: all of Group
	Place string   // empty: any; else as a listing has it
	Args  []string // the first arguments as a listing has them
}

// IsDeletion reports whether text is for ParseDeletion rather than for Parse.
func IsDeletion(text string) bool {
	return strings.HasPrefix(strings.TrimLeftFunc(text, isBlank), "-")
}

// IsBlank reports whether text holds no command: nothing but white space and a
// comment.
func IsBlank(text string) bool { return len(tokenize(text).tokens) == 0 }

// ParseDeletion reads a deletion. The error is a *SyntaxError.
func ParseDeletion(text string) (*Deletion, error) {
	src := tokenize(text)
	if err := src.check(); err != nil {
		return nil, err
	}
	refuse := func(detail string) (*Deletion, error) {
		e := src.fail(0, 0, CodeBadCommand)
		e.Column, e.Detail = 0, detail
		return nil, e
	}
	if len(src.tokens) == 0 {
		return refuse("it begins with -:")
	}
	name, ok := strings.CutPrefix(src.tokens[0], "-:")
	if !ok {
		return refuse("it begins with -:")
	}
	x := &Deletion{Event: name}
	if group, event, ok := strings.Cut(name, "/"); ok {
		x.Group, x.Event = group, event
	}
	if x.Group == "" && x.Event == "" {
		return refuse("it names neither an event nor a group")
	}
	if len(src.tokens) > 1 {
		x.Place, x.Args = src.tokens[1], src.tokens[2:]
	}
	return x, nil
}

// Matches reports whether x takes d away.
func (x *Deletion) Matches(d *Def) bool {
	if x.Group != "" && x.Group != d.Group || x.Event != "" && x.Event != d.Event ||
		x.Place != "" && x.Place != d.Place.String() || len(x.Args) > len(d.Args) {
		return false
	}
	for i, text := range x.Args {
		if text != d.Args[i].Name+"="+d.Args[i].Text {
			return false
		}
	}
	return true
}

// Join checks that d may be one more probe of an event that has the probes
// have, all of the same group and event name: same kind, same arguments, and
// not the same probe again. The error is a *SyntaxError with errno EEXIST.
func (d *Def) Join(have []*Def) error {
	if len(have) == 0 {
		return nil
	}
	first := have[0]
	if d.Kind != first.Kind {
		return d.line().fail(0, 0, CodeDiffProbeType)
	}
	if len(d.Args) != len(first.Args) {
		return d.line().fail(2+min(len(d.Args), len(first.Args)), 0, CodeDiffArgType)
	}
	for i, a := range d.Args {
		// A bit field counts as its container's type, as in the kernel.
		if a.Name != first.Args[i].Name || a.Type.container() != first.Args[i].Type.container() {
			return d.line().fail(2+i, 0, CodeDiffArgType)
		}
	}
	for _, h := range have {
		if d.Place == h.Place && slices.EqualFunc(d.Args, h.Args, func(a, b Arg) bool { return a.Text == b.Text }) {
			return d.line().fail(0, 0, CodeSameProbe)
		}
	}
	return nil
}

// Taken returns the error for a definition whose group and event name are in
// use.
func (d *Def) Taken() error { return d.line().fail(0, 0, CodeEventExist) }
