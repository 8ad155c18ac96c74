package analyze

import (
	"cmp"
	"slices"

	"github.com/guestprobe/guestprobe/probe/flow"
)

// Report is the result for a file.
type Report struct {
	File    string `json:"file"`
	Kind    string `json:"kind"`                    // elf or bzImage
	Packing string `json:"packing,omitempty"`       // how a bzImage's kernel was compressed
	Version string `json:"version,omitempty"`       // of a kernel
	BuildID string `json:"build_id,omitempty"`      // hexadecimal
	Names   string `json:"names"`                   // .symtab, .dynsym or kallsyms
	Checked int    `json:"names_checked,omitempty"` // of kallsyms, by the kernel's table of exports
	Thunks  bool   `json:"thunks,omitempty"`        // a kernel built with RETPOLINE or IBT
	Text    uint64 `json:"text_bytes"`              // of the functions that were looked at
	Targets int    `json:"cross_reference"`         // direct branch targets from other functions
	Partial bool   `json:"partial,omitempty"`       // the cross reference had no room for all
	Count   int    `json:"functions"`               // looked at
	Insts   int    `json:"instructions"`            // in them, without the padding at the end
	Broken  int    `json:"undecodable"`             // functions with bytes that are not an instruction
	Jumps   int    `json:"indirect_jumps"`          // in them
	Tables  int    `json:"indirect_with_table"`     // functions whose jump table was found
	// LeftOut are functions that may not be probed at all, by reason.
	LeftOut []Count `json:"left_out"`
	Rules   []Share `json:"rules"`
	Seconds float64 `json:"seconds"` // that it took
}

// Share is the result for one set of rules.
type Share struct {
	Rule    string `json:"rule"` // kernel, kernel_thunks, ours or ours_calls
	Entries Tally  `json:"entries"`
	// BehindFtrace are the places right after the ftrace call that a function
	// begins with: the best substitute for the entry, with the arguments still
	// unchanged.
	BehindFtrace Tally `json:"behind_ftrace,omitzero"`
	Boundaries   Tally `json:"boundaries"`
}

// IsZero reports whether nothing was counted.
func (t Tally) IsZero() bool { return t.Total == 0 }

// Tally is how many places were asked for, and the answers.
type Tally struct {
	Total   int     `json:"total"`
	Yes     int     `json:"optimizable"`
	Reasons []Count `json:"reasons"` // for no, most frequent first
}

// Count is how often something was the reason.
type Count struct {
	Reason string `json:"reason"`
	Count  int    `json:"count"`
}

// Percent returns the share of yes, or 0 when nothing was counted.
func (t *Tally) Percent() float64 {
	if t.Total == 0 {
		return 0
	}
	return 100 * float64(t.Yes) / float64(t.Total)
}

// counts are reasons with their counts, before they are sorted.
type counts map[string]int

func (c counts) sortedCounts() []Count {
	out := []Count{}
	for r, n := range c {
		out = append(out, Count{r, n})
	}
	slices.SortFunc(out, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

// tally counts answers.
type tally struct {
	total, yes int
	no         counts
}

func (t *tally) add(no *flow.Refusal) {
	t.total++
	if no == nil {
		t.yes++
		return
	}
	if t.no == nil {
		t.no = counts{}
	}
	r := string(no.Reason)
	if no.Reason == flow.ReasonPatchedSite {
		r += ":" + no.Detail
	}
	t.no[r]++
}

func (t *tally) merge(u *tally) {
	t.total, t.yes = t.total+u.total, t.yes+u.yes
	for r, n := range u.no {
		if t.no == nil {
			t.no = counts{}
		}
		t.no[r] += n
	}
}

func (t *tally) result() Tally { return Tally{t.total, t.yes, t.no.sortedCounts()} }
