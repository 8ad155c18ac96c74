package flow

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestExceptionEntry: to Linux an entry anywhere in the function is in the way,
// to us one in the region.
func TestExceptionEntry(t *testing.T) {
	body := code(t, "90 90 90 90 90 48 8b 07 c3 90 90 90 90 90")
	for _, tt := range []struct {
		entry, off         int
		kernel, thunk, own string
	}{
		{5, 0, "exception_entry", "exception_entry", "ok 5 @1 2 3 4"},
		{5, 1, "exception_entry", "exception_entry", "exception_entry"},
		{5, 5, "exception_entry", "exception_entry", "exception_entry"},
		{5, 8, "exception_entry", "exception_entry", "ok 5 @1 2 3 4"},
		{6, 5, "ok 5 @3 4", "ok 5 @3 4", "ok 5 @3 4"}, // inside an instruction: no entry of any
		{14, 5, "ok 5 @3 4", "ok 5 @3 4", "ok 5 @3 4"},
	} {
		f := Analyze(Input{Addr: base, Code: body, Exception: func(a uint64) bool { return a == base+uint64(tt.entry) }})
		for r, want := range map[Rule]string{Kernel: tt.kernel, KernelThunks: tt.thunk, Ours: tt.own, OursCalls: tt.own} {
			if got := verdict(f, tt.off, r); got != want {
				t.Errorf("entry at %d, region at %d by %v: got %q, want %q", tt.entry, tt.off, r, got, want)
			}
		}
	}
}

// TestRefusals: the instruction that is in the way is named, and why.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		off        int
		rule       Rule
		want       Refusal
		text       string
	}{
		{"inside an instruction", "48 89 e5 90 90 90", 1, Ours, Refusal{ReasonNotBoundary, 1, ""}, "not_boundary at +0x1"},
		{"behind the function", "90 90 90 90 90 90", 6, Ours, Refusal{ReasonNotBoundary, 6, ""}, "not_boundary at +0x6"},
		{"before it", "90 90 90 90 90 90", -1, Kernel, Refusal{ReasonNotBoundary, -1, ""}, "not_boundary"},
		{"at the bad byte", "90 90 90 90 90 06 90", 5, Ours, Refusal{ReasonUndecodable, 5, "x86: invalid instruction"}, "undecodable at +0x5: x86: invalid instruction"},
		{"behind it", "90 90 90 90 90 06 90", 6, Kernel, Refusal{ReasonUndecodable, 5, "x86: invalid instruction"}, "undecodable at +0x5: x86: invalid instruction"},
		{"too short", "90 90 90 90 90 c3", 2, Kernel, Refusal{ReasonFunctionTooShort, 2, "4 bytes up to the next symbol"}, "function_too_short at +0x2: 4 bytes up to the next symbol"},
		{"second instruction", "90 e8 00 00 00 00 c3", 0, Ours, Refusal{ReasonCallInRegion, 1, ""}, "call_in_region at +0x1"},
		{"jump behind", "90 90 90 90 90 90 eb f9 c3", 0, Ours, Refusal{ReasonJumpIntoRegion, 6, "to +0x1"}, "jump_into_region at +0x6: to +0x1"},
		{"jump inside", "48 8d 05 00 00 00 00 eb f9 c3", 0, Ours, Refusal{ReasonJumpIntoRegion, 7, "to +0x2, inside an instruction"}, "jump_into_region at +0x7: to +0x2, inside an instruction"},
		{"trap", "90 0f 0b 90 90 90", 0, Ours, Refusal{ReasonTrapInRegion, 1, ""}, "trap_in_region at +0x1"},
		{"mov ss before", "8e d0 90 90 90 90 90", 2, Ours, Refusal{ReasonMasksExceptions, 0, "right before the region"}, "masks_exceptions at +0x0: right before the region"},
		{"sti, then hlt", "90 90 90 90 fb f4", 0, Ours, Refusal{ReasonInterruptShadow, 4, "wait follows"}, "interrupt_shadow at +0x4: wait follows"},
	} {
		f := Analyze(Input{Addr: base, Code: code(t, tt.code)})
		reg, no := f.Region(tt.off, tt.rule)
		if no == nil {
			t.Errorf("%s: got %+v", tt.name, reg)
			continue
		}
		if d := cmp.Diff(tt.want, *no); d != "" || no.String() != tt.text {
			t.Errorf("%s: %q (-want +got):\n%s", tt.name, no, d)
		}
	}
	// One from elsewhere has no place in the function.
	f := Analyze(Input{Addr: base, Code: code(t, "90 90 90 90 90 c3"), Known: knownIndex(false, base, base+3, base+5)})
	_, no := f.Region(0, Ours)
	if want := (Refusal{ReasonJumpIntoRegion, -1, "to +0x3, from elsewhere"}); no == nil || *no != want {
		t.Errorf("from elsewhere: got %v, want %v", no, &want)
	}
}
