package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// change is what one request does to the probes: definitions and deletions, in their
// order, each of which sees what those before it have done. All of it happens or
// nothing; store.changes is held from its beginning to its end.
type change struct {
	st  *Session
	own *Owner  // the stream that it is for, or nil
	obj *Object // whose programs' places it is about, or nil
	dry bool    // nothing comes of it: what registering would refuse is refused at once

	come    []*Probe       // probes that are new
	command map[*Probe]int // of those: which command each is of

	// Those by name, as the index has the others, as far as a deletion has asked for it.
	named map[string][]*Probe
	known int // how many of come are in named

	leave   []*Probe // probes that go
	leaving map[*Probe]bool

	skipped []Skipped
}

// newChange returns a change that has done nothing yet. Callers hold changes.
func (st *Session) newChange(own *Owner, obj *Object) *change {
	return &change{st: st, own: own, obj: obj, command: map[*Probe]int{}, named: map[string][]*Probe{}, leaving: map[*Probe]bool{}}
}

// Attached is the result of Attach.
type Attached struct {
	Probes   []*Probe  // that were attached, by number
	Detached []Info    // that deletions have detached, in their final state
	Skipped  []Skipped // places that a pattern has left out
}

// Skipped is a definition for one of the functions that a pattern matches, and why that was left out.
type Skipped struct {
	Def string
	Err *Error
}

// Attach attaches the probes of definitions, and detaches those that deletions name, in their order: all of it, or nothing. With an
// owner, which must be a new one, the probes without Spec.Stay are the owner's; owner may be nil. The Index of an *Error says which definition was refused. An error beside
// attached probes says that the code of a detached probe could not be restored.
func (st *Session) Attach(specs []Spec, owner *Owner) (Attached, error) {
	return st.apply(specs, owner, nil)
}

// Check does all that Attach does for one definition except what the guest sees of it, and returns how many probes it would be.
func (st *Session) Check(spec Spec) (int, error) {
	if err := st.change(); err != nil {
		return 0, err
	}
	defer st.changes.Unlock()
	c := st.newChange(nil, nil)
	c.dry = true
	defer c.undo()
	if err := c.carryOut(0, spec); err != nil {
		return 0, err
	}
	return len(c.come), nil
}

// apply is Attach. Where obj is not nil, specs are the places of its programs.
func (st *Session) apply(specs []Spec, own *Owner, obj *Object) (list Attached, err error) {
	if slices.ContainsFunc(specs, func(s Spec) bool { return s.Stack }) {
		_, _ = st.source() // takes a second, which the first hit should not
	}
	if err := st.change(); err != nil {
		return list, err
	}
	defer st.changes.Unlock()
	c := st.newChange(own, obj)
	for i, spec := range specs {
		err := c.carryOut(i, spec)
		if st.closed.Load() {
			err = ErrClosed
		}
		if err != nil {
			c.undo()
			return list, atIndex(err, i)
		}
	}
	if err := c.register(); err != nil {
		c.undo()
		return list, err
	}
	if obj != nil {
		st.objects.add(obj, c.come)
	}
	if own != nil {
		own.only = make(map[*Probe]bool, len(c.come))
		for _, a := range c.come {
			own.only[a] = true
		}
	}
	st.index.add(c.come)
	list.Probes, list.Skipped = c.come, c.skipped
	if len(c.leave) > 0 {
		list.Detached, err = st.remove(c.leave)
	}
	return list, err
}

// carryOut carries out one command, except on the guest.
func (c *change) carryOut(i int, spec Spec) error {
	switch {
	case spec.Def != "" && event.IsBlank(spec.Def):
		return nil
	case event.IsDeletion(spec.Def):
		return c.deletion(spec)
	}
	if pattern := event.Glob(spec.Def); pattern != "" && c.obj == nil {
		return c.glob(i, spec, pattern)
	}
	if at, ok := event.InSource(spec.Def); ok && c.obj == nil {
		return c.inSource(i, spec, at)
	}
	return c.define(i, spec, "", false)
}

// glob makes probes of the functions that a pattern stands for, except functions that cannot
// be probed.
func (c *change) glob(i int, spec Spec, pattern string) error {
	if err := guest.CheckGlob(pattern); err != nil {
		return event.NoPlace(spec.Def, err.Error())
	}
	var defs []placed
	seen := map[guest.GVA]bool{} // a function may have several names
	for _, sym := range c.st.guest.Image().Match(pattern) {
		if linux.IsPadding(sym.Name) && !linux.IsPadding(pattern) {
			continue // each function of a kernel may have some, which can never be probed
		}
		if sym.Kind == guest.SymFunc && !seen[sym.Addr] {
			seen[sym.Addr] = true
			defs = append(defs, placed{def: event.OfFunction(spec.Def, sym.Name)})
		}
	}
	return c.each(i, spec, defs, fmt.Sprintf("no function that matches %q can be probed", pattern))
}

// placed is a definition for one of the places that another one stands for, and the
// function that it is about there, "" for the one that the code is of.
type placed struct{ def, in string }

// each makes probes of the definitions that one stands for, except those that cannot be attached;
// none says that this was all of them.
func (c *change) each(i int, spec Spec, defs []placed, none string) error {
	var first error
	before := len(c.come)
	for _, x := range defs {
		of := spec
		of.Def = x.def
		err := c.define(i, of, x.in, true)
		if c.st.closed.Load() {
			return ErrClosed
		}
		if err == nil {
			continue
		}
		e := ErrorOf(err)
		switch {
		case spec.Strict || e.Code == CodeTooMany || e.Code == "":
			return err
		case first == nil:
			first = err
		}
		c.skipped = append(c.skipped, Skipped{Def: of.Def, Err: e})
	}
	if len(c.come) > before {
		return nil
	}
	if first == nil {
		_, first = event.ParseIn(spec.Def, c.st.scope("")) // there is no such symbol
	}
	e := *ErrorOf(first)
	e.Detail = strings.TrimPrefix(e.Detail+"; "+none, "; ")
	return &e
}

// define makes the probe of a definition, or its probes. Where check is set what
// registering it would refuse is refused at once.
func (c *change) define(i int, spec Spec, in string, check bool) error {
	if spec.AtRets {
		return c.atRets(i, spec, check)
	}
	return c.add(i, &Probe{spec: spec, in: in}, check)
}

// add makes a the probe of its definition.
func (c *change) add(i int, a *Probe, check bool) error {
	if len(c.st.snapshot())+len(c.come) >= MaxProbes {
		return &Error{Code: CodeTooMany, Errno: syscall.ENOSPC, Text: fmt.Sprintf("more than %d probes", MaxProbes)}
	}
	a.owner, a.stay = c.own, c.own == nil || a.spec.Stay
	if c.obj != nil {
		a.object, a.prog = c.obj, c.obj.loaded.Programs[i]
	}
	err := c.st.compile(a)
	if err == nil && (check || c.dry) {
		if _, err = c.st.engine.Check(a.probe); err != nil {
			err = a.def.Refused(err)
		}
	}
	if err == nil && a.prog != nil {
		c.st.attachProgram(a)
	} else if err == nil {
		err = c.st.define(a)
	}
	if err != nil {
		c.st.discard(a)
		return err
	}
	c.come = append(c.come, a)
	c.command[a] = i
	return nil
}

// called returns the probes of a name, of before and those that are new.
func (c *change) called(name string) []*Probe {
	for ; c.known < len(c.come); c.known++ {
		a := c.come[c.known]
		for _, n := range a.names() {
			c.named[n] = append(c.named[n], a)
		}
	}
	return append(slices.Clip(c.st.index.called(name)), c.named[name]...)
}

// deletion takes away what a deletion matches: probes that stay, and those that come
// with the same request.
func (c *change) deletion(spec Spec) error {
	x, err := event.ParseDeletion(spec.Def)
	if err != nil {
		return err
	}
	if c.own != nil {
		return badValue("a stream brings probes, and takes none away")
	}
	key := x.Event
	switch {
	case x.Event == "":
		key = x.Group + "/"
	case !x.AnyGroup:
		key = x.Group + "/" + x.Event
	}
	found := false
	for _, a := range c.called(key) {
		_, comes := c.command[a]
		if !a.stay || c.leaving[a] || a.id == 0 && !comes || !x.Matches(a.def) {
			continue
		}
		found = true
		if comes {
			delete(c.command, a)
			c.st.discard(a)
			continue
		}
		c.st.events.part(a)
		c.leave, c.leaving[a] = append(c.leave, a), true
	}
	if !found {
		e := *ErrorOf(x.NoMatch())
		e.Code = CodeProbeNotFound
		return &e
	}
	return nil
}

// register puts the new probes on the guest.
func (c *change) register() error {
	st := c.st
	c.come = slices.DeleteFunc(c.come, func(a *Probe) bool { _, ok := c.command[a]; return !ok })
	firstID := st.lastID
	for _, a := range c.come { // the number is there before the first hit can be
		st.lastID++
		a.id = st.lastID
	}
	// Debug registers are few: the registers of watches that go are free for new ones.
	var watches []*Probe
	for _, a := range c.leave {
		if a.watch != nil {
			watches = append(watches, a)
		}
	}
	asleep, err := st.enable(watches, false)
	if err == nil {
		err = st.register(c.come)
	}
	if err != nil {
		_, undo := st.enable(asleep, true)
		err = errors.Join(err, undo)
		st.lastID = firstID // the other numbers were not seen
		var refused *probe.Error
		if errors.As(err, &refused) && refused.Index < len(c.come) {
			a := c.come[refused.Index]
			return atIndex(a.def.Refused(err), c.command[a])
		}
		return err
	}
	return nil
}

// undo takes back what the commands have done so far.
func (c *change) undo() {
	for a := range c.command {
		c.st.discard(a)
	}
	for _, a := range c.leave {
		// They were together before.
		if err := c.st.events.join(a); err != nil {
			panic("BUG: a probe does not fit its event again: " + err.Error())
		}
	}
}

// discard forgets a probe that is not registered.
func (st *Session) discard(a *Probe) {
	st.events.part(a)
	st.dropPrograms([]*Probe{a})
	if a.source != nil {
		a.source.Close()
	}
}
