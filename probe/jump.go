package probe

// Why a site is not optimized, besides the reasons of package flow.
const (
	notPostHandler = "post_handler"     // a probe there has a post or fault handler
	notNeighbour   = "probe_in_region"  // another probe is armed in the region
	notMirrorEnd   = "mirror_end"       // mirrors of jprobes end there
	notSpace       = "address_space"    // a probe there is for one address space, and the target has several
	notSharedText  = "shared_text"      // the guest does not say that its user text is mapped once and for all
	notNoPlace     = "no_place"         // no address has the int3s that the displacement needs
	notMemory      = "no_detour_memory" // executable memory is used up
	notReach       = "out_of_reach"     // an operand of a displaced instruction
	notMapped      = "not_mapped"       // an address space in use lacks the detour
	notTextChanged = "text_changed"     // the region is not what the image says
	notWaiting     = "waiting"          // for the next pass
	notOff         = "optimization_off" // the global knob
	notDisarmed    = "not_armed"        // disabled, or everything is disarmed
	notUnknown     = "no_function"      // the function is not known
	notOnThisHost  = "host"             // the target cannot place detours
)

// passing are the refusals that may not hold any more when something has changed
// around the site: it is looked at again then.
var passing = map[string]bool{notSharedText: true, notNoPlace: true, notMemory: true, notMapped: true, notTextChanged: true}

// Unoptimized is why a site is not optimized.
type Unoptimized struct {
	Reason string // machine-readable: of flow.Reason, or what stands against it at the moment
	Detail string // for people; may be empty
}

// optimization is what has become of a site's jump. A value never changes.
type optimization struct {
	state  jumpState
	why    Unoptimized // there is no jump
	detour *detour     // where it leads
}

// jumpState is one of the states of an optimization.
type jumpState uint8

const (
	jumpNone    jumpState = iota // the site was not looked at yet, or is being changed
	jumpBlocked                  // something stands against it at the moment
	jumpWaiting                  // nothing does: the next pass looks at it
	jumpRefused                  // a pass has found that there can be none
	jumpLater                    // likewise, for what the guest may change by itself: looked at again in a while
	jumpPlaced                   // the text has it
)

var noJump = &optimization{}

// detour returns where the site's jump leads, or nil without a jump.
func (s *site) detour() *detour { return s.jump.Load().detour }

// set is the only transition from one state of st to another. The world is stopped
// when a detour comes or goes; view is held.
func (o *optimizer) set(st *site, to *optimization) {
	was := st.jump.Swap(to)
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

// block says what stands against a jump at st.
func (o *optimizer) block(st *site, why string) {
	o.set(st, &optimization{state: jumpBlocked, why: Unoptimized{Reason: why}})
}

// wait lets the next pass look at st.
func (o *optimizer) wait(st *site) {
	o.set(st, &optimization{state: jumpWaiting, why: Unoptimized{Reason: notWaiting}})
}

// refuse says why st has no jump.
func (o *optimizer) refuse(st *site, why Unoptimized) {
	state := jumpRefused
	if why.Reason == notSharedText || why.Reason == notTextChanged {
		state = jumpLater
	}
	o.set(st, &optimization{state: state, why: why})
}
