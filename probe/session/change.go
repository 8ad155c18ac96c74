package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// change is the effect of one request on the probes: definitions and deletions, in
// their order, each of which sees the effects of those before it. Either all of it
// happens or nothing; Session.changes is held throughout.
type change struct {
	st  *Session
	own *Owner  // the stream of the request, or nil
	obj *Object // the object whose programs' places these are, or nil
	dry bool    // a check only: reject at once what registration would reject

	come    []*Probe       // new probes
	command map[*Probe]int // of those: the index of each one's command

	// Those by name, in the form of the index, once a deletion needs it.
	named map[string][]*Probe
	known int // number of probes in come that are in named

	spec *Spec // of the latest of come: see shareSpec

	leave   []*Probe // probes to remove
	leaving map[*Probe]bool

	skipped []Skipped
}

// newChange returns an empty change. Callers hold changes.
func (st *Session) newChange(own *Owner, obj *Object) *change {
	return &change{st: st, own: own, obj: obj, command: map[*Probe]int{}, named: map[string][]*Probe{}, leaving: map[*Probe]bool{}}
}

// Attached is the result of Attach.
type Attached struct {
	Probes   []*Probe  // the attached probes, by number
	Detached []Info    // probes detached by deletions, in their final state
	Skipped  []Skipped // places that a pattern has left out
	Notes    []string  // of AttachObject: differences from the file
}

// Skipped is a definition for one of the functions that a pattern matches, and why it
// was left out.
type Skipped struct {
	Def string
	Err *Error
}

// Attach attaches the probes of definitions, and detaches those named by deletions,
// in their order: all of it, or nothing. With an owner, which must be a new one, the
// probes without Spec.Stay are the owner's; owner may be nil. The Index of an *Error
// says which definition was rejected. An error together with attached probes says
// that the code of a detached probe could not be restored.
func (st *Session) Attach(specs []Spec, owner *Owner) (Attached, error) {
	orders := make([]order, len(specs))
	for i, spec := range specs {
		orders[i] = newOrder(spec)
	}
	return st.apply(orders, owner, nil)
}

// order is one command of a change, with its options.
type order struct {
	cmd  *event.Command
	spec Spec // Def is the text of cmd, for errors
}

// newOrder reads the command of a Spec.
func newOrder(spec Spec) order { return order{event.ReadCommand(spec.Def), spec} }

// Check does everything Attach does for one definition except changing the guest, and
// returns the number of probes.
func (st *Session) Check(spec Spec) (int, error) {
	if err := st.lockChanges(); err != nil {
		return 0, err
	}
	defer st.changes.Unlock()
	c := st.newChange(nil, nil)
	c.dry = true
	defer c.undo()
	if err := c.carryOut(0, newOrder(spec)); err != nil {
		return 0, err
	}
	return len(c.come), nil
}

// apply is Attach. If obj is not nil, orders are the places of its programs.
func (st *Session) apply(orders []order, own *Owner, obj *Object) (list Attached, err error) {
	if slices.ContainsFunc(orders, func(o order) bool { return o.spec.Stack }) {
		_, _ = st.source() // takes a second, which would delay the first hit
	}
	if err := st.lockChanges(); err != nil {
		return list, err
	}
	defer st.changes.Unlock()
	c := st.newChange(own, obj)
	for i, o := range orders {
		err := c.carryOut(i, o)
		if st.closed.Load() {
			err = ErrClosed
		}
		if err != nil {
			c.undo()
			return list, indexError(err, i)
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
	for _, a := range c.come {
		a.def.ForgetLine()
	}
	st.index.add(c.come)
	list.Probes, list.Skipped = c.come, c.skipped
	if len(c.leave) > 0 {
		list.Detached, err = st.remove(c.leave)
	}
	return list, err
}

// carryOut carries out one command, except for changing the guest.
func (c *change) carryOut(i int, o order) error {
	cmd, spec := o.cmd, o.spec
	switch {
	case spec.Def != "" && cmd.IsBlank():
		return nil
	case cmd.IsDeletion():
		return c.deletion(cmd)
	}
	if pattern := cmd.Pattern(); pattern != "" && c.obj == nil {
		return c.glob(i, spec, cmd)
	}
	if at, ok := cmd.SourcePlace(); ok && c.obj == nil {
		return c.makeInSource(i, spec, cmd, at)
	}
	return c.define(i, &spec, expansion{cmd: cmd}, false)
}

// glob makes probes of the functions that match a command's pattern, except functions
// that cannot be probed.
func (c *change) glob(i int, spec Spec, cmd *event.Command) error {
	if err := cmd.CheckPattern(); err != nil {
		return err
	}
	pattern := cmd.Pattern()
	var defs []expansion
	seen := map[guest.GVA]bool{} // a function may have several names
	for _, sym := range c.st.guest.Image().Match(pattern) {
		if linux.IsPadding(sym.Name) && !linux.IsPadding(pattern) {
			continue // each function of a kernel may have such symbols, which can never be probed
		}
		if sym.Kind == guest.SymFunc && !seen[sym.Addr] {
			seen[sym.Addr] = true
			defs = append(defs, expansion{cmd: cmd.OfFunction(sym.Name)})
		}
	}
	return c.makeEach(i, spec, cmd, defs, fmt.Sprintf("no function that matches %q can be probed", pattern))
}

// expansion is a definition at one of the places of another one, and the function
// that it is about there, "" for the function that the code is in.
type expansion struct {
	cmd *event.Command
	in  string
}

// makeEach makes probes of the definitions that a command expands to, except those
// that cannot be attached; none says that this was all of them.
func (c *change) makeEach(i int, spec Spec, cmd *event.Command, defs []expansion, none string) error {
	var first error
	before, of := len(c.come), spec
	for _, x := range defs {
		of.Def = x.cmd.String()
		err := c.define(i, &of, x, true)
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
		_, first = cmd.Define(c.st.scope("")) // there is no such symbol
	}
	e := *ErrorOf(first)
	if len(defs) == 1 || e.Code == CodeBadDefinition { // the places are not the cause
		return &e
	}
	e.Detail = strings.TrimPrefix(e.Detail+"; "+none, "; ")
	return &e
}

// define makes the probe of a definition, or its probes. If check is set, definitions
// that registration would reject are rejected at once.
func (c *change) define(i int, spec *Spec, x expansion, check bool) error {
	def, err := x.cmd.Define(c.st.scope(x.in))
	switch {
	case err != nil:
		return err
	case spec.AtRets:
		return c.makeAtRets(i, *spec, def, check)
	}
	return c.add(i, &Probe{spec: spec, in: x.in}, def, check)
}

// add makes a the probe of a definition.
func (c *change) add(i int, a *Probe, def *event.Def, check bool) error {
	if len(c.st.snapshot())+len(c.come) >= maxProbes {
		return &Error{Code: CodeTooMany, Errno: syscall.ENOSPC, Text: fmt.Sprintf("more than %d probes", maxProbes)}
	}
	a.owner, a.stay = c.own, c.own == nil || a.spec.Stay
	a.runs = &definitionProgram{}
	if c.obj != nil {
		a.object, a.runs = c.obj, &objectProgram{c.obj, c.obj.loaded.Programs[i]}
	}
	err := c.st.compile(a, def)
	if err == nil && (check || c.dry) {
		err = a.on.check(c.st.engine)
		if err != nil {
			err = a.def.RefusalError(err)
		}
	}
	if err == nil {
		err = a.runs.attach(&c.st.attacher, a)
	}
	if err != nil {
		c.st.discard(a)
		return err
	}
	a.spec = c.shareSpec(a.spec)
	c.come = append(c.come, a)
	c.command[a] = i
	return nil
}

// shareSpec returns s without Def, which only errors of the request need: the same Spec for all
// probes of a request that differ in nothing else.
func (c *change) shareSpec(s *Spec) *Spec {
	plain := *s
	plain.Def = ""
	if c.spec == nil || *c.spec != plain {
		c.spec = &plain
	}
	return c.spec
}

// probesByName returns the probes of a name, existing and new ones.
func (c *change) probesByName(name string) []*Probe {
	for ; c.known < len(c.come); c.known++ {
		a := c.come[c.known]
		for _, n := range a.names() {
			c.named[n] = append(c.named[n], a)
		}
	}
	return append(slices.Clip(c.st.index.probesByName(name)), c.named[name]...)
}

// deletion removes the probes that match a deletion: existing ones, and new ones of
// the same request.
func (c *change) deletion(cmd *event.Command) error {
	x, err := cmd.Deletion()
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
	for _, a := range c.probesByName(key) {
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
		e := *ErrorOf(x.NoMatchError())
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
	for _, a := range c.come { // the number must be set before the first hit
		st.lastID++
		a.id = st.lastID
	}
	// Debug registers are few: the registers of removed watches are then free for new
	// ones.
	asleep, err := st.enable(slices.DeleteFunc(slices.Clone(c.leave), func(a *Probe) bool { return a.def.Kind != event.KindWatch }), false)
	if err == nil {
		err = st.register(c.come)
	}
	if err != nil {
		_, undo := st.enable(asleep, true)
		err = errors.Join(err, undo)
		st.lastID = firstID // the other numbers were not visible
		var refused *probe.Error
		if errors.As(err, &refused) && refused.Index < len(c.come) {
			a := c.come[refused.Index]
			return indexError(a.def.RefusalError(err), c.command[a])
		}
		return err
	}
	return nil
}

// undo reverts the commands so far.
func (c *change) undo() {
	c.st.discard(slices.Collect(maps.Keys(c.command))...)
	for _, a := range c.leave {
		// They were compatible before.
		if err := c.st.events.join(a); err != nil {
			panic("BUG: a probe does not fit its event again: " + err.Error())
		}
	}
}

// discard drops probes that are not registered. It stops the guest if one of them has a program in it.
func (at *attacher) discard(as ...*Probe) {
	for _, a := range as {
		at.events.part(a)
	}
	at.dropPrograms(as)
	for _, a := range as {
		if a.source != nil {
			a.source.Close()
		}
	}
}
