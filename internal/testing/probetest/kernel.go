package probetest

import (
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// Kernel is an image whose guest patches itself, as far as its fields say: a
// probe.Kernel.
type Kernel struct {
	*guest.Image
	Rewritten []Rewritten
	Faulting  []guest.GVA                   // of instructions with an exception-table entry
	Leads     []guest.GVA                   // where branches may come to lead, ascending
	Freed     guest.Range                   // no longer text
	Module    string                        // a module whose symbols the image also has, as MODULE:NAME
	Absent    bool                          // it is not there
	Elsewhere map[string]string             // functions there with the names of others in the image
	Ready     string                        // the function that is called when a module is ready
	Leaves    string                        // the function that is called when its memory is copied away
	Reads     string                        // the function that a debugger of its own asks for the bytes of an instruction
	Comes     func(int, probe.Milestone)    // called then
	GS        bool                          // the profile is by GS: see FakeOptions.GS
	Faults    *guest.FaultProfile           // in that profile
	Stacks    uint64                        // in that profile: the size of the stacks of tasks
	Pads      []guest.GVA                   // int3s that are never executed
	Frames    map[guest.GVA]guest.FrameRule // more than the image has
}

// Rewritten is a piece of text that the guest rewrites. A piece that its tracer
// rewrites ("ftrace") is at a function's entry.
type Rewritten struct {
	guest.Range
	Why string
}

// Ftrace is Rewritten.Why of the place where a function calls its tracer.
const Ftrace = "ftrace"

// IsText implements probe.Symbols.
func (k *Kernel) IsText(addr guest.GVA) bool {
	return k.Image.IsText(addr) && (addr < k.Freed.Start || addr >= k.Freed.End)
}

// FreedText implements probe.Kernel.
func (k *Kernel) FreedText(addr guest.GVA) bool { return !k.IsText(addr) }

// Pieces implements probe.Kernel. Something may have changed each time.
func (k *Kernel) Pieces() []guest.Piece {
	type id struct {
		image  *guest.Image
		freed  guest.Range
		absent bool
	}
	return []guest.Piece{{ID: id{k.Image, k.Freed, k.Absent}, Text: k.Image.Text(false)}}
}

// Lookup implements probe.Symbols.
func (k *Kernel) Lookup(name string) (guest.Symbol, error) {
	module, symbol, ok := strings.Cut(name, ":")
	switch {
	case !ok:
		return k.Image.Lookup(name)
	case module != k.Module || k.Absent:
		return guest.Symbol{}, guest.ErrModuleNotFound
	}
	if other, ok := k.Elsewhere[symbol]; ok {
		symbol = other
	}
	return k.Image.Lookup(symbol)
}

// HasModule reports whether the module is there.
func (k *Kernel) HasModule(name string) (loaded bool, why string) {
	return name == k.Module && !k.Absent, ""
}

// Milestone implements probe.Milestones, by the Kernel that the engine is shown.
func (f *Fake) Milestone(m probe.Milestone) []string {
	k, ok := f.syms.(*Kernel)
	switch {
	case !ok:
	case m == probe.ModuleComes && k.Ready != "":
		return []string{k.Ready}
	case m == probe.MemoryLeaves && k.Leaves != "":
		return []string{k.Leaves}
	case m == probe.TextRead && k.Reads != "":
		return []string{k.Reads}
	}
	return nil
}

// NotePass implements probe.Milestones.
func (f *Fake) NotePass(cpu int, m probe.Milestone) { f.syms.(*Kernel).Comes(cpu, m) }

// Profile implements probe.Image.
func (k *Kernel) Profile() (guest.Profile, error) {
	if k.GS {
		p := gsProfile
		p.Faults, p.StackMask = k.Faults, -k.Stacks
		return p, nil
	}
	return k.Image.Profile()
}

// FixedReason implements probe.Kernel.
func (k *Kernel) FixedReason(lo, hi guest.GVA) string {
	for _, r := range k.Rewritten {
		if r.Start < hi && lo < r.End {
			return r.Why
		}
	}
	return ""
}

// Entry implements probe.Kernel.
func (k *Kernel) Entry(addr guest.GVA) guest.GVA {
	for _, r := range k.Rewritten {
		if r.Start == addr && r.Why == Ftrace {
			return r.End
		}
	}
	return addr
}

// Edges implements probe.Kernel.
func (k *Kernel) Edges(lo, hi guest.GVA) (in []guest.GVA) {
	for _, a := range k.Leads {
		if lo <= a && a < hi {
			in = append(in, a)
		}
	}
	return in
}

// Exception implements probe.Kernel.
func (k *Kernel) Exception(addr guest.GVA) bool {
	return slices.Contains(k.Faulting, addr)
}

// Padding implements probe.Kernel.
func (k *Kernel) Padding() []guest.GVA { return k.Pads }

// FrameRule implements probe.Image.
func (k *Kernel) FrameRule(pc guest.GVA) (guest.FrameRule, bool) {
	if r, ok := k.Frames[pc]; ok {
		return r, true
	}
	return k.Image.FrameRule(pc)
}
