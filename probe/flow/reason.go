package flow

import "fmt"

// Reason says why a region cannot be displaced: a stable, machine-readable
// name. Names are added to, never changed.
type Reason string

// The reasons.
const (
	ReasonNotBoundary      Reason = "not_boundary"
	ReasonUndecodable      Reason = "undecodable"
	ReasonFunctionTooShort Reason = "function_too_short"
	ReasonFunctionTooLong  Reason = "function_too_long"
	ReasonExceptionEntry   Reason = "exception_entry"
	ReasonIndirectJump     Reason = "indirect_jump"
	ReasonJumpIntoRegion   Reason = "jump_into_region"
	ReasonCallInRegion     Reason = "call_in_region"
	ReasonBranchInRegion   Reason = "branch_in_region"
	ReasonInt3InRegion     Reason = "int3_in_region"
	ReasonTrapInRegion     Reason = "trap_in_region"
	ReasonEndbrInRegion    Reason = "endbr_in_region"
	ReasonNotBoostable     Reason = "not_boostable"
	ReasonNotMovable       Reason = "not_movable"
	ReasonMasksExceptions  Reason = "masks_exceptions"
	ReasonInterruptShadow  Reason = "interrupt_shadow"
	ReasonNotProbeable     Reason = "not_probeable"
	ReasonUnreached        Reason = "unreached"
	ReasonData             Reason = "data"
	ReasonNotPadding       Reason = "not_padding"
	ReasonOverlap          Reason = "overlapping_code"
	ReasonPatchedSite      Reason = "patched_site"
)

// meanings explain the reasons, in a sentence each, as docs/optimization.md does.
var meanings = map[Reason]string{
	ReasonNotBoundary:      "no instruction begins there",
	ReasonUndecodable:      "bytes that are no instruction; by Linux's rules anywhere in the function",
	ReasonFunctionTooShort: "fewer than 5 bytes up to the next function",
	ReasonFunctionTooLong:  "more than 256 KiB, which are not analyzed",
	ReasonExceptionEntry:   "a fault of the instruction is looked up by its address; by Linux's rules of any in the function",
	ReasonIndirectJump:     "one is in the function; by our rules one of which the targets are not known",
	ReasonJumpIntoRegion:   "a known jump goes to a place after the site's first byte",
	ReasonCallInRegion:     "the call would push another return address, or return into the region",
	ReasonBranchInRegion:   "Linux only: a jump, conditional or not, or a loop",
	ReasonInt3InRegion:     "an int3 that is no padding",
	ReasonTrapInRegion:     "an instruction whose trap would report the copy's address",
	ReasonEndbrInRegion:    "a place where indirect branches are meant to arrive",
	ReasonNotBoostable:     "the copy cannot be followed by others, or would show where it ran",
	ReasonNotMovable:       "the copy would not do the same",
	ReasonMasksExceptions:  "mov ss in the region or right before it",
	ReasonInterruptShadow:  "sti whose shadow would be lost",
	ReasonNotProbeable:     "Linux only: no kprobe at all on the instruction",
	ReasonUnreached:        "no known path leads there: it may be data",
	ReasonData:             "the image, or an instruction, uses the bytes as data",
	ReasonNotPadding:       "the bytes after an instruction that never continues are neither padding nor known to be code",
	ReasonOverlap:          "its bytes are part of another instruction as well",
	ReasonPatchedSite:      "the guest rewrites these bytes itself",
}

// Meaning explains the reason in a sentence without its capital and full stop. It is
// empty for any other string.
func (r Reason) Meaning() string { return meanings[r] }

// Refusal is the reason why there is no region.
type Refusal struct {
	Reason Reason
	Off    int    // of the instruction that prevents it, from the function's first byte; -1 for one elsewhere
	Detail string // for people: a description; may be empty
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
