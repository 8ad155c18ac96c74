package event

import "strings"

// Deletion is a command that takes probes away: "-:[group/]event [place
// [args]]", "-:group/" for a whole group, or "!" before a definition or a line of a
// listing (kernel/trace/trace_dynevent.c, dyn_event_release).
type Deletion struct {
	AnyGroup bool     // it names no group
	Group    string   // may be empty: no probe is of such a group
	Event    string   // empty: all of Group
	Place    string   // empty: any; else as a listing has it
	Args     []string // the first arguments as a listing has them

	src *line
}

// IsDeletion reports whether text is for ParseDeletion rather than for Parse.
func IsDeletion(text string) bool {
	text = strings.TrimLeftFunc(text, isBlank)
	return strings.HasPrefix(text, "-") || strings.HasPrefix(text, "!")
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
		return refuse("it begins with -: or !")
	}
	name, ok := strings.CutPrefix(src.tokens[0], "-:")
	if head := src.tokens[0]; !ok && head[0] == '!' {
		// The kernel does not look at what stands before the colon.
		if _, name, ok = strings.Cut(head, ":"); !ok {
			return refuse("behind ! a definition names its event, as in !p:EVENT PLACE")
		}
	}
	if !ok {
		return refuse("it begins with -: or !")
	}
	x := &Deletion{AnyGroup: true, Event: name, src: src}
	if group, event, ok := strings.Cut(name, "/"); ok {
		x.AnyGroup, x.Group, x.Event = false, group, event
	}
	if x.AnyGroup && x.Event == "" {
		return refuse("it names neither an event nor a group")
	}
	if len(src.tokens) > 1 {
		x.Place, x.Args = src.tokens[1], src.tokens[2:]
	}
	return x, nil
}

// Matches reports whether x takes d away.
func (x *Deletion) Matches(d *Def) bool {
	if !x.AnyGroup && x.Group != d.Group || x.Event != "" && x.Event != d.Event ||
		x.Place != "" && x.Place != d.where() || len(x.Args) > len(d.Args) {
		return false
	}
	for i, text := range x.Args {
		if text != d.Args[i].Name+"="+d.Args[i].Text {
			return false
		}
	}
	return true
}

// NoMatch returns the error for a deletion that takes nothing away.
func (x *Deletion) NoMatch() error { return x.src.fail(0, 0, CodeNoEvent) }

// Probes are those of one event. The kernel's rules decide which there can be: all
// are of one kind and have the same arguments, and none is there twice. The zero
// value has none.
type Probes struct {
	one  *Def            // instead of all, where there is one: nearly always
	more map[string]*Def // by Def.identity
}

// Len returns how many there are.
func (v *Probes) Len() int {
	if v.one != nil {
		return 1
	}
	return len(v.more)
}

// Add adds d, which has the group and event name of the others, or returns a
// *SyntaxError with errno EEXIST.
func (v *Probes) Add(d *Def) error {
	have := v.one
	for _, have = range v.more { // they are all alike
		break
	}
	if have != nil {
		if d.Kind != have.Kind {
			return d.line().fail(0, 0, CodeDiffProbeType)
		}
		if len(d.Args) != len(have.Args) {
			return d.line().fail(2+min(len(d.Args), len(have.Args)), 0, CodeDiffArgType)
		}
		for i, a := range d.Args {
			// A bit field counts as its container's type, as in the kernel.
			if a.Name != have.Args[i].Name || a.Type.container() != have.Args[i].Type.container() {
				return d.line().fail(2+i, 0, CodeDiffArgType)
			}
		}
	}
	id := d.identity()
	if v.more[id] != nil || v.one != nil && v.one.identity() == id {
		return d.line().fail(0, 0, CodeSameProbe)
	}
	switch {
	case v.Len() == 0:
		v.one = d
		return nil
	case v.one != nil:
		v.more = map[string]*Def{v.one.identity(): v.one}
		v.one = nil
	}
	v.more[id] = d
	return nil
}

// Remove takes d out, if it is there.
func (v *Probes) Remove(d *Def) {
	if v.one == d {
		v.one = nil
	} else if id := d.identity(); v.more[id] == d {
		delete(v.more, id)
	}
}

// identity is what no two probes of one event have in common.
func (d *Def) identity() string {
	var b strings.Builder
	b.WriteString(d.where())
	for _, a := range d.Args {
		b.WriteByte(' ')
		b.WriteString(a.Text)
	}
	return b.String()
}

// Taken returns the error for a definition whose group and event name are those of
// something else.
func (d *Def) Taken() error { return d.line().fail(0, 0, CodeEventExist) }
