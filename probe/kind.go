package probe

import "github.com/guestprobe/guestprobe/guest"

// kind is the behavior specific to one kind of registration: at a hit, in listings,
// and at registration and removal. ordinary is the behavior of a kprobe; the others
// embed it.
type kind interface {
	traits() traits

	// check makes the kind's own checks of r, at the place that was found.
	check(r *registration, p *places, at place) *Error

	// arrive lets r, which is enabled, see a hit in its address space, and reports
	// whether its pre handler has taken it. k is its cell of c. It takes no lock and
	// allocates nothing.
	arrive(c *cpu, s State, r *registration, k *cell) (taken bool)

	// mirror returns the jprobe whose mirror runs at a hit, or nil.
	mirror() *jprobe

	// guestStage returns the stage that does in the guest what a hit of r does, or
	// nil; last says that it belongs after all other stages.
	guestStage(r *registration) (s *Stage, last bool)

	// guestCounts returns the counts of hits of r on a vCPU that took no exit.
	guestCounts(r *registration, cpu int) (handled, filtered, missed uint64)

	// countReturns puts the returns of each vCPU into byCPU.
	countReturns(byCPU []Stats) (abandoned, underWay uint64)

	// describe fills in the fields specific to the kind. Callers hold Engine.view or
	// Engine.mu.
	describe(i *Info)

	// place gives the kind's own stages the address of the probe. The world is
	// stopped.
	place(at guest.GVA)

	// prepare makes the table for calls at st, or returns nil if the kind follows
	// none; follow makes new calls use it. The world is stopped for follow, or
	// nothing has run yet.
	prepare(x *returns, st *site) (*instances, *Error)
	follow(t *instances)

	// table is the table for new calls; tables are all tables with calls.
	table() *instances
	tables() []*instances

	// addCompanions adds the hidden probes that r, which the batch has admitted, needs.
	addCompanions(g *registry, b *batch, r *registration) *Error

	// withdraw returns the hidden probes to remove together with a probe, and records
	// in g those to remove later. The world is stopped.
	withdraw(g *registry) []*registration

	// end discards the results of prepare that install has not used, close ends the
	// calls of a probe that is unregistered, and abandon ends the calls of a probe
	// whose code is gone. The world is stopped for close and abandon.
	end()
	close(w World)
	abandon()
}

// traits is a set of properties of a kind.
type traits byte

const (
	listed      traits = 1 << iota // in listings of probes
	counted                        // the target's milestones are watched for it
	returning                      // it waits for its module, and comes back with its code
	byJump                         // a host without breakpoints can serve it
	mirrorEnds                     // mirrors of jprobes end there
	subordinate                    // the engine's own: no warning if its code is gone
)

// is reports whether the kind of r has all of t.
func (r *registration) is(t traits) bool { return r.kind.traits()&t == t }

// ordinary is the kind of kprobes.
type ordinary struct{}

func (ordinary) traits() traits                                        { return listed | counted | returning | byJump }
func (ordinary) check(*registration, *places, place) *Error            { return nil }
func (ordinary) mirror() *jprobe                                       { return nil }
func (ordinary) countReturns([]Stats) (abandoned, underWay uint64)     { return 0, 0 }
func (ordinary) describe(*Info)                                        {}
func (ordinary) place(guest.GVA)                                       {}
func (ordinary) prepare(*returns, *site) (*instances, *Error)          { return nil, nil }
func (ordinary) follow(*instances)                                     {}
func (ordinary) table() *instances                                     { return nil }
func (ordinary) tables() []*instances                                  { return nil }
func (ordinary) addCompanions(*registry, *batch, *registration) *Error { return nil }
func (ordinary) withdraw(*registry) []*registration                    { return nil }
func (ordinary) end()                                                  {}
func (ordinary) close(World)                                           {}
func (ordinary) abandon()                                              {}

func (ordinary) arrive(c *cpu, _ State, r *registration, k *cell) (taken bool) {
	c.setProbe(r)
	if r.filter != nil && !c.runFilter(r) {
		count(&k.filtered)
		return false
	}
	count(&k.handled)
	k.passed = c.seq
	if r.watched() {
		c.postDue = true
	}
	return r.pre != nil && c.runPre(r) != 0
}

func (ordinary) guestStage(r *registration) (s *Stage, last bool) {
	if s := r.stage; s != nil && s.Stack <= MaxStageStack {
		return s, false
	}
	return nil, false
}

func (ordinary) guestCounts(r *registration, cpu int) (handled, filtered, missed uint64) {
	if s := r.stage; s != nil && s.Counts != nil {
		return s.Counts(cpu)
	}
	return 0, 0, 0
}

// Kinds of the engine's own probes.
type (
	mirrorEnd     struct{ ordinary } // where mirrors of jprobes end
	executeWatch  struct{ ordinary } // of an execute watch served by a breakpoint
	milestoneStop struct{ ordinary } // at a Milestone
)

func (mirrorEnd) traits() traits     { return mirrorEnds }
func (executeWatch) traits() traits  { return counted }
func (milestoneStop) traits() traits { return subordinate }
