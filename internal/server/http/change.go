package http

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// change is what one request does to the probes: definitions and deletions, in their
// order, each of which sees what those before it have done. All of it happens or
// nothing; store.changes is held from its beginning to its end.
type change struct {
	st  *store
	own *session // the stream that it is for, or nil
	obj *object  // whose programs' places it is about, or nil
	dry bool     // nothing comes of it: what registering would refuse is refused at once

	come    []*attached       // probes that are new
	command map[*attached]int // of those: which command each is of

	// Those by name, as the index has the others, as far as a deletion has asked for it.
	named map[string][]*attached
	known int // how many of come are in named

	leave   []*attached // probes that go
	leaving map[*attached]bool

	skipped []api.Skipped
}

// newChange returns a change that has done nothing yet. Callers hold changes.
func (st *store) newChange(own *session, obj *object) *change {
	return &change{st: st, own: own, obj: obj, command: map[*attached]int{}, named: map[string][]*attached{}, leaving: map[*attached]bool{}}
}

// attach carries out commands, for a stream where own is not nil.
func (st *store) attach(specs []api.ProbeSpec, own *session) (api.ProbeList, error) {
	come, list, err := st.apply(specs, own, nil)
	list.Probes = st.came(come)
	return list, err
}

// apply is attach, but for the description of the probes that come: there may be tens of
// thousands. Where obj is not nil, specs are the places of its programs.
func (st *store) apply(specs []api.ProbeSpec, own *session, obj *object) (come []*attached, list api.ProbeList, err error) {
	if slices.ContainsFunc(specs, func(s api.ProbeSpec) bool { return s.Stack }) {
		_, _ = st.guest.Source() // takes a second, which the first hit should not
	}
	if err := st.change(); err != nil {
		return nil, list, err
	}
	defer st.changes.Unlock()
	c := st.newChange(own, obj)
	for i, spec := range specs {
		err := c.carryOut(i, spec)
		if st.closed.Load() {
			err = errClosing
		}
		if err != nil {
			c.undo()
			return nil, list, atIndex(err, i)
		}
	}
	if err := c.register(); err != nil {
		c.undo()
		return nil, list, err
	}
	if obj != nil {
		st.objects.add(obj, c.come)
	}
	if own != nil {
		own.only = make(map[*attached]bool, len(c.come))
		for _, a := range c.come {
			own.only[a] = true
		}
	}
	st.index.add(c.come)
	list.Skipped = c.skipped
	if len(c.leave) > 0 {
		list.Detached, err = st.remove(c.leave)
	}
	return c.come, list, err
}

// carryOut carries out one command, but for what the guest sees of it.
func (c *change) carryOut(i int, spec api.ProbeSpec) error {
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
		return c.source(i, spec, at)
	}
	return c.define(i, spec, "", false)
}

// glob makes probes of the functions that a pattern stands for, but for those that cannot
// be probed.
func (c *change) glob(i int, spec api.ProbeSpec, pattern string) error {
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

// each makes probes of the definitions that one stands for, but for those that cannot be;
// none says that this was all of them.
func (c *change) each(i int, spec api.ProbeSpec, defs []placed, none string) error {
	var first error
	before := len(c.come)
	for _, x := range defs {
		of := spec
		of.Def = x.def
		err := c.define(i, of, x.in, true)
		if c.st.closed.Load() {
			return errClosing
		}
		if err == nil {
			continue
		}
		e := toAPI(err)
		switch {
		case spec.Strict || e.Code == api.CodeTooMany || e.Code == api.CodeInternal:
			return err
		case first == nil:
			first = err
		}
		c.skipped = append(c.skipped, api.Skipped{Def: of.Def, Error: *e})
	}
	if len(c.come) > before {
		return nil
	}
	if first == nil {
		_, first = event.ParseIn(spec.Def, c.st.scope("")) // there is no such symbol
	}
	e := *toAPI(first)
	e.Detail = strings.TrimPrefix(e.Detail+"; "+none, "; ")
	return &e
}

// define makes the probe of a definition, or its probes. Where check is set what
// registering it would refuse is refused at once.
func (c *change) define(i int, spec api.ProbeSpec, in string, check bool) error {
	if spec.AtRets {
		return c.atRets(i, spec, check)
	}
	return c.add(i, &attached{spec: spec, in: in}, check)
}

// add makes a the probe of its definition.
func (c *change) add(i int, a *attached, check bool) error {
	if len(c.st.snapshot())+len(c.come) >= maxProbes {
		return &api.Error{Code: api.CodeTooMany, Errno: "ENOSPC", Message: fmt.Sprintf("more than %d probes", maxProbes)}
	}
	a.stream, a.stay = c.own, c.own == nil || a.spec.Stay
	if c.obj != nil {
		a.object, a.prog = c.obj, c.obj.Programs[i]
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
func (c *change) called(name string) []*attached {
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
func (c *change) deletion(spec api.ProbeSpec) error {
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
		e := *toAPI(x.NoMatch())
		e.Code = api.CodeProbeNotFound
		return &e
	}
	return nil
}

// register puts the new probes on the guest.
func (c *change) register() error {
	st := c.st
	c.come = slices.DeleteFunc(c.come, func(a *attached) bool { _, ok := c.command[a]; return !ok })
	firstID := st.lastID
	for _, a := range c.come { // the number is there before the first hit can be
		st.lastID++
		a.id = st.lastID
	}
	// Debug registers are few: those of watches that go are free for those that come.
	var watches []*attached
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
		st.lastID = firstID // nobody has seen the others
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
			panic("BUG: a probe is no more one of its event: " + err.Error())
		}
	}
}

// discard forgets a probe that is not registered.
func (st *store) discard(a *attached) {
	st.events.part(a)
	st.dropPrograms([]*attached{a})
	if a.source != nil {
		a.source.Close()
	}
}
