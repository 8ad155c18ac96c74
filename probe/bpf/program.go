package bpf

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Kind is where a program is attached, which determines its context.
type Kind uint8

// The kinds of program.
const (
	Raw        Kind = iota // context is any memory, and may be written
	Kprobe                 // context is struct pt_regs, read-only
	Kretprobe              // the same, at the function's return
	Watch                  // the same, after an access to memory; on the host
	Fentry                 // context is the function's arguments, words by its type, read-only
	Fexit                  // the same, at its return, followed by the result
	SysEnter               // context is that of the tracepoint at the entry of a system call, read-only
	SysExit                // the same, of the tracepoint at its return
	Tracepoint             // context is the arguments of a tracepoint of Linux, a word each, read-only
	Event                  // context is the record of an event of Linux tracing, read-only; on the host
)

// AtTracepoint is the prefix of the name of a tracepoint in ObjectProgram.AttachTo.
const AtTracepoint = "tracepoint:"

// TracepointFunction returns the function that a tracepoint of Linux calls while
// several functions are registered on it. The arguments of the tracepoint follow its
// first argument (include/linux/tracepoint.h).
func TracepointFunction(name string) string { return "__traceiter_" + name }

// String returns the prefix of the sections for the kind in clang's output.
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
	case Tracepoint:
		return "raw_tracepoint"
	case Event:
		return "tracepoint"
	}
	return "raw"
}

// AtReturn reports whether such a program runs when the function returns.
func (k Kind) AtReturn() bool { return k == Kretprobe || k == Fexit || k == SysExit }

func (k Kind) hasRegs() bool { return k != Raw }
func (k Kind) typed() bool   { return k == Fentry || k == Fexit || k == Tracepoint }

// maxArgs is the most words of arguments of a typed program.
func (k Kind) maxArgs() int {
	if k == Tracepoint {
		return maxTracepointArgs
	}
	return len(x86.CallArgs)
}

func (k Kind) isCall() bool { return k == SysEnter || k == SysExit }

// DefaultBudget is the budget of a program that sets none.
const DefaultBudget = 1 << 20

// Spec is the specification of a program.
type Spec struct {
	Name string
	Kind Kind
	// Insns are the instructions. Jumps and calls may name labels, which are symbols
	// of other instructions; maps are named by their number in Maps.
	Insns asm.Instructions
	Maps  []*Map
	// Args is the number of argument words of the function of a Fentry or Fexit, at
	// most six, or of a Tracepoint, at most twelve; Returns says whether the function
	// of a Fexit returns a word.
	Args    int
	Returns bool
	// Follows makes a load from an address that is not the program's read the guest's
	// memory, as loads through Linux's typed pointers (BTF) do: unreadable memory
	// reads as 0.
	Follows bool
	// Budget bounds the run time: every jump back costs the number of slots that it
	// goes back over, and every local call the length of the function. A run never
	// executes more instructions than the budget and the program's length together. 0
	// means DefaultBudget.
	Budget int64

	shows map[uint32]*showPlace // types for snprintf_btf, by their numbers
}

// Program is a checked program. It does not change, and may be used from any
// thread.
type Program struct {
	name    string
	kind    Kind
	insns   asm.Instructions
	slots   slots // indexed by slot
	ops     []op
	fns     *functions
	maps    []*Map
	segs    []segment // of the maps, on the host
	args    int
	returns bool
	follows bool
	budget  int64
	helpers []Helper // that it calls, ascending
	shows   map[uint32]*showPlace
	cpus    int
	pruned  []bool // by slot: constants of the object make it unreachable
}

// New checks a program. Errors are *CheckError, or about its maps. The maps
// must outlive the program and be made for the same number of vCPUs.
func New(s Spec) (*Program, error) {
	p := &Program{
		name: s.Name, kind: s.Kind, maps: slices.Clone(s.Maps), budget: s.Budget, cpus: 1,
		args: s.Args, returns: s.Returns, follows: s.Follows, shows: s.shows,
	}
	if p.args < 0 || p.args > p.kind.maxArgs() {
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
	err := p.check(s)
	if err == nil {
		p.ops = lower(p.slots, p.fns, p.kind)
		err = p.prune()
	}
	if err != nil {
		if s.Name != "" {
			return nil, fmt.Errorf("make program %q: %w", s.Name, err)
		}
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

// check resolves labels and checks the instructions.
func (p *Program) check(s Spec) (err error) {
	if p.insns, err = resolve(s.Insns); err != nil {
		return err
	}
	p.slots, p.fns, err = check(p.insns, p.maps, p.kind)
	return err
}

// WithMaps returns the program with other maps, which equal those that it was checked
// with except for their addresses, and for the size of rings.
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
		if a.Kind != b.Kind || a.KeySize != b.KeySize || a.ValueSize != b.ValueSize || a.MaxEntries != b.MaxEntries || a.ReadOnly != b.ReadOnly || a.Frozen != b.Frozen || a.Frozen && !bytes.Equal(a.Contents, b.Contents) || m.cpus != p.cpus {
			return nil, fmt.Errorf("make program %q: map %q is not like map %q", p.name, a.Name, b.Name)
		}
		q.segs = append(q.segs, m.segment())
	}
	return &q, nil
}

// Instructions identifies the instructions of a program. It can be compared, and be the key of a map.
type Instructions struct{ of *functions }

// Instructions returns an identity that programs share which were loaded with the same instructions. If they also have the same maps, the machine code of one is
// that of the other.
func (p *Program) Instructions() Instructions { return Instructions{p.fns} }

// Name returns the name of the program.
func (p *Program) Name() string { return p.name }

// contextSize returns the size in bytes of the program's context; a raw program's can
// have any size.
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

// argWords returns the number of argument words for get_func_arg.
func (p *Program) argWords() int {
	switch {
	case p.kind.typed():
		return p.args
	case p.kind.isCall():
		return 0
	}
	return len(x86.CallArgs)
}

// Kind returns where the program can be attached.
func (p *Program) Kind() Kind { return p.kind }

// Len returns the length in instruction slots.
func (p *Program) Len() int { return len(p.slots) }

// Budget returns the program's budget: see Spec.
func (p *Program) Budget() int64 { return p.budget }

// Insns returns a copy of the instructions.
func (p *Program) Insns() asm.Instructions { return slices.Clone(p.insns) }

// hostOnly returns why the program can only run on the host, "" if it may run in a
// guest.
func (p *Program) hostOnly() string {
	for _, m := range p.maps {
		if !m.spec.Kind.InGuest() {
			return fmt.Sprintf("map %q is a %v, which only the host has", m.spec.Name, m.spec.Kind)
		}
		if m.hashed() && m.spec.KeySize > maxGuestKey {
			return fmt.Sprintf("map %q has keys of %d bytes, which only the host handles: at most %d in the guest", m.spec.Name, m.spec.KeySize, maxGuestKey)
		}
		if m.spec.LockAt != 0 {
			return fmt.Sprintf("map %q has a lock in its values, which only the host takes", m.spec.Name)
		}
	}
	switch {
	case p.kind.isCall():
		return "its context is that of a tracepoint, which the host makes"
	case p.kind == Event:
		return "its context is the record of an event, which the host makes"
	}
	for pc, i := range p.slots {
		if p.ops[pc].code == opLoadImm && i.IsLoadOfFunctionPointer() {
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
