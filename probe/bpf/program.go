package bpf

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// Kind says what a program is attached to, which fixes its context.
type Kind uint8

// The kinds of program.
const (
	Raw       Kind = iota // context is any memory, and may be written
	Kprobe                // context is struct pt_regs, read-only
	Kretprobe             // the same, at the function's return
)

// String returns the prefix of the section that clang output has the kind in.
func (k Kind) String() string {
	switch k {
	case Kprobe:
		return "kprobe"
	case Kretprobe:
		return "kretprobe"
	}
	return "raw"
}

func (k Kind) hasRegs() bool { return k == Kprobe || k == Kretprobe }

// DefaultBudget is the budget of a program that sets none.
const DefaultBudget = 1 << 20

// Spec is what a program is made from.
type Spec struct {
	Name string
	Kind Kind
	// Insns are the instructions. Jumps and calls may name labels, which are symbols
	// of other instructions; maps are named by their number in Maps.
	Insns asm.Instructions
	Maps  []*Map
	// Budget bounds the run time: every jump back takes the number of slots
	// that it goes back over, and every local call the length of the function,
	// from it, and a run never executes more instructions than the budget and
	// the program's length together. 0 stands for DefaultBudget.
	Budget int64
}

// Program is a checked program. It does not change, and may be used from any
// thread.
type Program struct {
	name    string
	kind    Kind
	insns   asm.Instructions
	slots   slots // the same
	ops     []op
	fns     *functions
	maps    []*Map
	segs    []segment // of the maps, on the host
	budget  int64
	helpers []Helper // that it calls, ascending
	cpus    int
}

// New checks a program. Errors are *CheckError, or about its maps. The maps
// must outlive the program and be made for the same number of vCPUs.
func New(s Spec) (*Program, error) {
	p := &Program{
		name: s.Name, kind: s.Kind, maps: slices.Clone(s.Maps), budget: s.Budget, cpus: 1,
	}
	if p.budget == 0 {
		p.budget = DefaultBudget
	}
	if p.budget < 0 {
		return nil, fmt.Errorf("make program %q: negative budget", s.Name)
	}
	for i, m := range p.maps {
		if m.area.Bytes == nil {
			return nil, fmt.Errorf("make program %q: map %q is closed", s.Name, m.spec.Name)
		}
		if m.cpus != p.maps[0].cpus {
			return nil, fmt.Errorf("make program %q: map %q is for %d vCPUs, the first one for %d", s.Name, m.spec.Name, m.cpus, p.maps[0].cpus)
		}
		if i == 0 {
			p.cpus = m.cpus
		}
		p.segs = append(p.segs, m.segment())
	}
	if err := p.check(s); err != nil {
		if s.Name != "" {
			return nil, fmt.Errorf("make program %q: %w", s.Name, err)
		}
		return nil, err
	}
	p.ops = lower(p.slots, p.fns)
	for _, o := range p.ops {
		if h := Helper(o.imm); o.code == opCall && !slices.Contains(p.helpers, h) {
			p.helpers = append(p.helpers, h)
		}
	}
	slices.Sort(p.helpers)
	return p, nil
}

// check resolves labels and checks the instructions.
func (p *Program) check(s Spec) (err error) {
	if p.insns, err = resolve(s.Insns); err != nil {
		return err
	}
	p.slots, p.fns, err = check(p.insns, p.maps, p.kind)
	return err
}

// WithMaps returns the program with other maps, which are like those that it was checked
// with but for where they are, and for the size of rings.
func (p *Program) WithMaps(maps ...*Map) (*Program, error) {
	if len(maps) != len(p.maps) {
		return nil, fmt.Errorf("make program %q: %d maps, not %d", p.name, len(maps), len(p.maps))
	}
	q := *p
	q.maps, q.segs = slices.Clone(maps), nil
	for i, m := range maps {
		a, b := m.spec, p.maps[i].spec
		if a.Kind == RingBuf && b.Kind == RingBuf {
			a.MaxEntries, b.MaxEntries = 0, 0
		}
		if a.Kind != b.Kind || a.KeySize != b.KeySize || a.ValueSize != b.ValueSize || a.MaxEntries != b.MaxEntries || a.ReadOnly != b.ReadOnly || m.cpus != p.cpus {
			return nil, fmt.Errorf("make program %q: map %q is not like map %q", p.name, a.Name, b.Name)
		}
		q.segs = append(q.segs, m.segment())
	}
	return &q, nil
}

// Name returns the name the program was made with.
func (p *Program) Name() string { return p.name }

// Kind returns what the program can be attached to.
func (p *Program) Kind() Kind { return p.kind }

// Len returns the length in instruction slots.
func (p *Program) Len() int { return len(p.slots) }

// Insns returns a copy of the instructions.
func (p *Program) Insns() asm.Instructions { return slices.Clone(p.insns) }

// Maps returns the maps that the program uses, in the order of their numbers.
func (p *Program) Maps() []*Map { return slices.Clone(p.maps) }

// Helpers returns the helpers that the program calls, in ascending order.
func (p *Program) Helpers() []Helper { return slices.Clone(p.helpers) }
