package bpf

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Kind says what a program is attached to, which fixes its context.
type Kind uint8

// The kinds of program.
const (
	Raw       Kind = iota // context is any memory, and may be written
	Kprobe                // context is struct pt_regs, read-only
	Kretprobe             // the same, at the function's return
	Watch                 // the same, behind an access to memory; on the host
	Fentry                // context is the function's arguments, words by its type, read-only
	Fexit                 // the same, at its return, and behind them what it returns
	SysEnter              // context is what the tracepoint at the entry of a system call has, read-only
	SysExit               // the same, of that at its return
)

// String returns the prefix of the section that clang output has the kind in.
func (k Kind) String() string {
	switch k {
	case Kprobe:
		return "kprobe"
	case Kretprobe:
		return "kretprobe"
	case Watch:
		return "watch"
	case Fentry:
		return "fentry"
	case Fexit:
		return "fexit"
	case SysEnter:
		return "sys_enter"
	case SysExit:
		return "sys_exit"
	}
	return "raw"
}

// AtReturn reports whether such a program runs when the function returns.
func (k Kind) AtReturn() bool { return k == Kretprobe || k == Fexit || k == SysExit }

func (k Kind) hasRegs() bool { return k != Raw }
func (k Kind) typed() bool   { return k == Fentry || k == Fexit }
func (k Kind) isCall() bool  { return k == SysEnter || k == SysExit }

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
	// Args is how many words of arguments the function of a Fentry or Fexit has, at most
	// six; Returns, of a Fexit, whether it returns a word.
	Args    int
	Returns bool
	// Follows has a load from what is no address of the program's read the guest's memory,
	// as loads by Linux's typed pointers (BTF) do: what cannot be read is 0.
	Follows bool
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
	args    int
	returns bool
	follows bool
	budget  int64
	helpers []Helper // that it calls, ascending
	cpus    int
}

// New checks a program. Errors are *CheckError, or about its maps. The maps
// must outlive the program and be made for the same number of vCPUs.
func New(s Spec) (*Program, error) {
	p := &Program{
		name: s.Name, kind: s.Kind, maps: slices.Clone(s.Maps), budget: s.Budget, cpus: 1,
		args: s.Args, returns: s.Returns, follows: s.Follows,
	}
	if p.args < 0 || p.args > len(x86.CallArgs) {
		return nil, fmt.Errorf("make program %q: %d words of arguments", s.Name, p.args)
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
	if err := p.complete(); err != nil {
		return nil, err
	}
	for _, o := range p.ops {
		if h := Helper(o.imm); o.code == opCall && !slices.Contains(p.helpers, h) {
			p.helpers = append(p.helpers, h)
		}
	}
	slices.Sort(p.helpers)
	return p, nil
}

// complete refuses a program that may come to an instruction for which something is
// missing.
func (p *Program) complete() error {
	if !slices.ContainsFunc(p.ops, func(o op) bool { return o.code == opMissing }) {
		return nil
	}
	for pc, f := range verify(p, false).facts {
		if p.ops[pc].code == opMissing && f.reached {
			return fmt.Errorf("make program %q: instruction %d: %s", p.name, pc, whyMissing(p.slots[pc]))
		}
	}
	return nil
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

// contextSize returns the size in bytes of the program's context; that of a raw one has
// any size.
func (p *Program) contextSize() int {
	if !p.kind.typed() {
		return p.kind.ContextSize()
	}
	words := p.args
	if p.returns {
		words++
	}
	return 8 * words
}

// argWords returns how many words of arguments get_func_arg knows.
func (p *Program) argWords() int {
	switch {
	case p.kind.typed():
		return p.args
	case p.kind.isCall():
		return 0
	}
	return len(x86.CallArgs)
}

// Kind returns what the program can be attached to.
func (p *Program) Kind() Kind { return p.kind }

// Len returns the length in instruction slots.
func (p *Program) Len() int { return len(p.slots) }

// Budget returns how many steps a run may take: see Spec.
func (p *Program) Budget() int64 { return p.budget }

// Insns returns a copy of the instructions.
func (p *Program) Insns() asm.Instructions { return slices.Clone(p.insns) }

// HostOnly returns why the program can only run on the host, "" if nothing is known
// against the guest.
func (p *Program) HostOnly() string {
	for _, m := range p.maps {
		if !m.spec.Kind.InGuest() {
			return fmt.Sprintf("map %q is a %v, which only the host has", m.spec.Name, m.spec.Kind)
		}
	}
	if p.kind.isCall() {
		return "its context is that of a tracepoint, which the host makes"
	}
	for _, i := range p.slots {
		if i != nil && i.IsLoadOfFunctionPointer() {
			return "it has functions called by their address, which the host does"
		}
	}
	if p.kind.typed() || p.follows {
		return verify(p, false).hostOnly()
	}
	return ""
}

// Maps returns the maps that the program uses, in the order of their numbers.
func (p *Program) Maps() []*Map { return slices.Clone(p.maps) }

// Helpers returns the helpers that the program calls, in ascending order.
func (p *Program) Helpers() []Helper { return slices.Clone(p.helpers) }
