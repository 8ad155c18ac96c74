package probe

import "github.com/guestprobe/guestprobe/probe/flow"

// Why a site is not optimized, besides the reasons of package flow.
const (
	notPostHandler = "post_handler"
	notNeighbour   = "probe_in_region"
	notMirrorEnd   = "mirror_end"
	notSpace       = "address_space"
	notSharedText  = "shared_text"
	notNoPlace     = "no_place"
	notMemory      = "no_detour_memory"
	notReach       = "out_of_reach"
	notMapped      = "not_mapped"
	notTextChanged = "text_changed"
	notWaiting     = "waiting"
	notOff         = "optimization_off"
	notDisarmed    = "not_armed"
	notUnknown     = "no_function"
	notOnThisHost  = "host"
)

// meanings explain the reasons of this package, in a sentence each, as
// docs/optimization.md does.
var meanings = map[string]string{
	notPostHandler: "a probe on the site has a post or a fault handler",
	notNeighbour:   "another probe is armed in the region; it has precedence whenever it comes",
	notMirrorEnd:   "mirrors of jprobes end there",
	notSpace:       "a probe on the site is for one address space (--space)",
	notSharedText:  "the guest does not promise that this text runs at one address only; looked at again while it may",
	notNoPlace:     "no free address has the int3s that the displacement needs",
	notMemory:      "the executable memory is used up, or not there yet",
	notReach:       "an operand or target of a displaced instruction is, from the detour",
	notMapped:      "the page tables in use lack the detour; looked at again while they may",
	notTextChanged: "the region is not what the image says",
	notWaiting:     "the next pass will look at it",
	notOff:         "all jumps are off: guestprobe optimization on brings them back",
	notDisarmed:    "disabled, or everything is disarmed",
	notUnknown:     "the image has no function, or no code, there",
	notOnThisHost:  "the target cannot place detours",
}

// passing are the rejections that may be obsolete when something has changed around
// the site: it is looked at again then.
var passing = map[string]bool{notSharedText: true, notNoPlace: true, notMemory: true, notMapped: true, notTextChanged: true}

// Unoptimized is why a site is not optimized.
type Unoptimized struct {
	Reason string // machine-readable: a flow.Reason, or the current obstacle
	Detail string // for people; may be empty
}

// Meaning explains the reason in a sentence without its capital and full stop. It is
// empty if there is no reason.
func (u Unoptimized) Meaning() string {
	if m := meanings[u.Reason]; m != "" {
		return m
	}
	return flow.Reason(u.Reason).Meaning()
}

// optimization is the state of a site's jump. A value never changes.
type optimization struct {
	state  jumpState
	why    Unoptimized // there is no jump
	detour *detour     // its target
}

// jumpState is one of the states of an optimization.
type jumpState uint8

const (
	jumpNone    jumpState = iota // the site was not examined yet, or is being changed
	jumpBlocked                  // there is an obstacle at the moment
	jumpWaiting                  // there is no obstacle: the next pass examines it
	jumpRefused                  // a pass has found that a jump is impossible
	jumpLater                    // likewise, for a reason that the guest may remove by itself: examined again later
	jumpPlaced                   // the jump is in the text
)

var noJump = &optimization{}

// goneJump is the state of a site whose code is gone.
var goneJump = &optimization{state: jumpBlocked, why: Unoptimized{Reason: notDisarmed}}

// detour returns the target of the site's jump, or nil without a jump.
func (s *site) detour() *detour { return s.jump.Load().detour }

// common returns an equal state that other sites may have, or to itself: tens of thousands of sites
// wait, or have no jump for one reason.
func (o *optimizer) common(to *optimization) *optimization {
	if to.detour != nil {
		return to
	}
	if x := o.states[*to]; x != nil {
		return x
	}
	if len(o.states) < maxStates {
		o.states[*to] = to
	}
	return to
}

// maxStates bounds the states that sites share. Details of reasons may name places.
const maxStates = 64

// set is the only transition from one state of st to another. The world is stopped if
// a detour is added or removed; view is held.
func (o *optimizer) set(st *site, to *optimization) {
	was := st.jump.Swap(o.common(to))
	delete(o.waiting, st)
	delete(o.later, st)
	switch to.state {
	case jumpWaiting:
		o.waiting[st] = true
	case jumpLater:
		o.later[st] = true
	}
	if was.detour == nil && to.detour != nil {
		o.stats.Optimized++
		o.stats.Now++
	} else if was.detour != nil && to.detour == nil {
		o.stats.Unoptimized++
		o.stats.Now--
	}
	o.kick()
}

// setBlocked records why st cannot have a jump.
func (o *optimizer) setBlocked(st *site, why string) {
	o.set(st, &optimization{state: jumpBlocked, why: Unoptimized{Reason: why}})
}

// setWaiting queues st for the next pass.
func (o *optimizer) setWaiting(st *site) {
	o.set(st, &optimization{state: jumpWaiting, why: Unoptimized{Reason: notWaiting}})
}

// setRefused records why st has no jump.
func (o *optimizer) setRefused(st *site, why Unoptimized) {
	state := jumpRefused
	if why.Reason == notSharedText || why.Reason == notTextChanged || why.Reason == notMapped {
		state = jumpLater
	}
	o.set(st, &optimization{state: state, why: why})
}
