package flow

import "fmt"

// Reason says why a region cannot be displaced: a stable, machine-readable
// name. Names are added to, never changed.
type Reason string

// The reasons.
const (
	ReasonNotBoundary      Reason = "not_boundary"       // no instruction begins at the offset
	ReasonUndecodable      Reason = "undecodable"        // bytes that are no instruction; for Kernel anywhere in the function
	ReasonFunctionTooShort Reason = "function_too_short" // fewer than 5 bytes up to the next symbol
	ReasonFunctionTooLong  Reason = "function_too_long"  // more than MaxCode bytes
	ReasonExceptionEntry   Reason = "exception_entry"    // an instruction whose fault is looked up by its address; for Kernel anywhere in the function
	ReasonIndirectJump     Reason = "indirect_jump"      // one in the function, for ours one whose targets are not known
	ReasonJumpIntoRegion   Reason = "jump_into_region"   // a known jump goes behind the first byte
	ReasonCallInRegion     Reason = "call_in_region"     // its copy would push another return address
	ReasonBranchInRegion   Reason = "branch_in_region"   // Kernel only: jmp, jcc, loop
	ReasonInt3InRegion     Reason = "int3_in_region"     // int3 that is not padding
	ReasonTrapInRegion     Reason = "trap_in_region"     // int n, ud2 and the like report their own address
	ReasonEndbrInRegion    Reason = "endbr_in_region"    // where indirect branches are meant to arrive
	ReasonNotBoostable     Reason = "not_boostable"      // a copy cannot be followed by more code, or shows where it ran
	ReasonNotMovable       Reason = "not_movable"        // a copy would not do the same
	ReasonMasksExceptions  Reason = "masks_exceptions"   // mov ss in the region or right before it
	ReasonInterruptShadow  Reason = "interrupt_shadow"   // sti at the end of the region, and a wait for an interrupt behind it
	ReasonNotProbeable     Reason = "not_probeable"      // Kernel only: no kprobe at all on the first instruction
	ReasonUnreached        Reason = "unreached"          // no known path leads there: it may be data
	ReasonData             Reason = "data"               // the image or an instruction uses it as memory
	ReasonNotPadding       Reason = "not_padding"        // what follows an instruction that does not go on
	ReasonOverlap          Reason = "overlapping_code"   // its bytes are part of another instruction as well
	ReasonPatchedSite      Reason = "patched_site"       // the guest rewrites these bytes itself
)

// Refusal is why there is no region.
type Refusal struct {
	Reason Reason
	Off    int    // of the instruction that is in the way, from the function's first byte; -1 for one elsewhere
	Detail string // for people: what it is; may be empty
}

// String returns the reason, the place and the detail in one line.
func (r *Refusal) String() string {
	s := string(r.Reason)
	if r.Off >= 0 {
		s += fmt.Sprintf(" at +%#x", r.Off)
	}
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	return s
}

func refuse(r Reason, off int, detail string) *Refusal { return &Refusal{r, off, detail} }
