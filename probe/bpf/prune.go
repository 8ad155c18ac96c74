package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Programs test constants of their object before they call something that only some
// kernels have: its read-only variables, which the user sets before it is loaded, and the
// options of the kernel. Linux's verifier knows the values of frozen maps, and removes
// the code that they make unreachable. So does prune, before anything is decided about a
// program: what it lacks, where it runs, and which warnings it gets.

// MissingError is the rejection of a program that reaches an instruction which lacks
// something.
type MissingError struct {
	Index  int    // slot of the instruction
	Why    string // what it lacks, and what to do
	Source string // file, line and text of the source, if the object has them
}

// Error names the instruction and the reason.
func (e *MissingError) Error() string {
	s := fmt.Sprintf("instruction %d: %s", e.Index, e.Why)
	if e.Source != "" {
		s += " (" + e.Source + ")"
	}
	return s
}

// prune replaces loads of constants by their values, and removes the code that is then
// unreachable. It rejects a program that may reach an instruction which lacks
// something.
func (p *Program) prune() error {
	missing := slices.ContainsFunc(p.ops, func(o op) bool { return o.code == opMissing })
	if !missing && !slices.ContainsFunc(p.maps, func(m *Map) bool { return m.spec.Frozen }) {
		return nil
	}
	a := newVerifier(p, false)
	a.constants = map[int]uint64{}
	a.run()
	for pc := range a.facts {
		if p.ops[pc].code == opMissing && a.facts[pc].reached {
			return p.lacks(pc)
		}
	}
	if a.gaveUp {
		return nil
	}
	before := p.reachableSlots()
	p.pruned = make([]bool, len(p.ops))
	for pc := range a.facts {
		o := &p.ops[pc]
		switch c, known := a.constants[pc]; {
		case p.slots[pc] == nil:
		case !a.facts[pc].reached:
			p.pruned[pc] = before[pc]
			*o = op{code: opMissing}
		case known && c <= math.MaxUint32:
			*o = op{code: opMov + form32K, dst: o.dst, imm: int64(c)}
		case known:
			*o = op{code: opMov + form64K, dst: o.dst, imm: int64(c)}
		}
	}
	p.dropFunctions()
	p.dropMaps()
	return nil
}

// lacks is the error for an instruction that lacks something.
func (p *Program) lacks(pc int) error {
	if why := missingReason(p.slots[pc]); why != "" {
		return &MissingError{Index: pc, Why: why, Source: p.sourceOf(pc)}
	}
	i := p.slots[pc]
	return &CheckError{Index: pc, Insn: *i, Reason: unavailable(i, p.kind)}
}

// dropFunctions forgets the functions that nothing calls any more. Their slots then
// belong to the functions before them.
func (p *Program) dropFunctions() {
	fns := &functions{end: p.fns.end}
	for _, start := range p.fns.starts {
		if start == 0 || p.ops[start].code != opMissing {
			fns.starts = append(fns.starts, start)
		}
	}
	p.fns = fns
}

// dropMaps forgets the maps that only removed code refers to.
func (p *Program) dropMaps() {
	used, unused := map[int]bool{}, map[int]bool{}
	for pc, i := range p.slots {
		if i == nil {
			continue
		}
		switch n, _, _, ok := mapImm(i); {
		case !ok || !i.OpCode.IsDWordLoad():
		case p.ops[pc].code == opLoadImm:
			used[n] = true
		default:
			unused[n] = true
		}
	}
	number := map[int]int{}
	maps, segs := p.maps, p.segs
	p.maps, p.segs = nil, nil
	for n, m := range maps {
		if number[n] = len(p.maps); used[n] || !unused[n] {
			p.maps, p.segs = append(p.maps, m), append(p.segs, segs[n])
		}
	}
	for pc, i := range p.slots {
		if p.ops[pc].code != opLoadImm {
			continue
		}
		if n, _, off, ok := mapImm(i); ok {
			i.Constant = int64(uint64(off)<<32 | uint64(number[n]))
			p.ops[pc] = lowerInsn(pc, i, p.fns)
		}
	}
}

// constantIn returns the value of a load of size bytes from a map that nothing can change
// after the program was loaded, extended with its sign or not.
func constantIn(s *MapSpec, off int64, size int, signed bool) (uint64, bool) {
	if !s.Frozen || off < 0 || off+int64(size) > int64(s.ValueSize) {
		return 0, false
	}
	var b [8]byte
	if off < int64(len(s.Contents)) {
		copy(b[:size], s.Contents[off:])
	}
	v := binary.LittleEndian.Uint64(b[:])
	if unused := 64 - 8*size; signed {
		v = uint64(int64(v<<unused) >> unused)
	}
	return v, true
}

// errFrozen is the cause if something is written into a frozen map.
var errFrozen = errors.New("its values are constants, which the loaded programs rely on")
