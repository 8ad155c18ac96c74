package event

import "strings"

// Deletion is a command that deletes probes: "-:[group/]event [place [args]]",
// "-:group/" for a whole group, or "!" before a definition or a line of a listing
// (kernel/trace/trace_dynevent.c, dyn_event_release).
type Deletion struct {
	AnyGroup bool     // it names no group
	Group    string   // may be empty: no probe has such a group
	Event    string   // empty: all of Group
	Place    string   // empty: any; otherwise as in a listing
	Args     []string // the first arguments as in a listing

	src *line
}

// ParseDeletion is Deletion for a text.
func ParseDeletion(text string) (*Deletion, error) { return ReadCommand(text).Deletion() }

// Deletion parses a deletion. The error is a *SyntaxError.
func (c *Command) Deletion() (*Deletion, error) {
	src := c.line
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
		// The kernel ignores the text before the colon.
		if _, name, ok = strings.Cut(head, ":"); !ok {
			return refuse("after ! a definition names its event, as in !p:EVENT PLACE")
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

// Matches reports whether x deletes d.
func (x *Deletion) Matches(d *Def) bool {
	if !x.AnyGroup && x.Group != d.Group || x.Event != "" && x.Event != d.Event ||
		x.Place != "" && x.Place != d.placeText() || len(x.Args) > len(d.Args) {
		return false
	}
	for i, text := range x.Args {
		if text != d.Args[i].Name+"="+d.Args[i].Text {
			return false
		}
	}
	return true
}

// NoMatchError returns the error for a deletion that deletes nothing.
func (x *Deletion) NoMatchError() error { return x.src.fail(0, 0, CodeNoEvent) }

// Probes is the set of probes of one event. By the kernel's rules all are of one kind
// and have the same arguments, and no two are equal. The zero value is empty.
type Probes struct {
	one  *Def            // instead of all, if there is only one: nearly always
	more map[string]*Def // by Def.identity
}

// Len returns the number of probes.
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

// Remove removes d, if present.
func (v *Probes) Remove(d *Def) {
	if v.one == d {
		v.one = nil
	} else if id := d.identity(); v.more[id] == d {
		delete(v.more, id)
	}
}

// identity is the part of a definition that is unique among the probes of one event.
func (d *Def) identity() string {
	var b strings.Builder
	b.WriteString(d.placeText())
	for _, a := range d.Args {
		b.WriteByte(' ')
		b.WriteString(a.Text)
	}
	return b.String()
}

// ExistsError returns the error for a definition whose group and event name are
// already taken.
func (d *Def) ExistsError() error { return d.line().fail(0, 0, CodeEventExist) }
