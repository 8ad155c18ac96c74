package bpf

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// contextTypes describes the context in BTF, so that accesses through vmlinux.h's
// struct pt_regs, which clang marks for relocation, find their fields. Newer kernels
// have cs and ss in anonymous unions; the names are found there too.
var contextTypes = sync.OnceValues(func() (*btf.Spec, error) {
	long := &btf.Int{Name: "unsigned long", Size: 8}
	regs := &btf.Struct{Name: "pt_regs", Size: RegsSize}
	for i, name := range x86.PtNames {
		regs.Members = append(regs.Members, btf.Member{Name: name, Type: long, Offset: btf.Bits(64 * i)})
	}
	b, err := btf.NewBuilder([]btf.Type{regs}, nil)
	if err != nil {
		return nil, err
	}
	return b.Spec()
})

// relocateTypes applies the relocations that depend on types (CO-RE). Without a
// kernel the only known types are the context and the object's own ones. An instruction whose type lacks the
// field must be unreachable: programs check first whether the field exists.
func (p *ObjectProgram) relocateTypes(in asm.Instructions, x *externs) (asm.Instructions, error) {
	k := x.kernel
	var relos []*btf.CORERelocation
	var where []int
	for i := range in {
		if r := btf.CORERelocationMetadata(&in[i]); r != nil {
			relos, where = append(relos, r), append(where, i)
		}
	}
	if len(relos) == 0 {
		return in, nil
	}
	regs, err := contextTypes()
	if err != nil {
		return nil, fmt.Errorf("describe the context: %w", err)
	}
	types := []*btf.Spec{regs}
	if k != nil && len(k.Types) > 0 {
		if _, err := k.Types[0].AnyTypeByName("pt_regs"); err == nil {
			types = k.Types
		} else {
			types = append(slices.Clone(k.Types), types...)
		}
	}
	if x.own != nil {
		types = append(slices.Clone(types), x.own)
	}
	noIDs := func(t btf.Type) (btf.TypeID, error) { return 0, fmt.Errorf("the ID of type %v is not known", t) }
	fixups, err := btf.CORERelocate(relos, types, binary.LittleEndian, noIDs)
	if err != nil {
		return nil, fmt.Errorf("relocate types: %w", err)
	}
	out := in[:0:0]
	next, prints := 0, printsTypes(in)
	for n, i := range where {
		out = append(out, in[next:i]...)
		next = i + 1
		ins := in[i]
		wide := ins.OpCode.IsDWordLoad()
		if err := fixups[n].Apply(&ins); err != nil {
			return nil, fmt.Errorf("relocate types: %w", err)
		}
		switch {
		case wide && ins.Dst == asm.R10 && ins.Constant == btf.COREBadRelocationSentinel, !wide && ins.IsBuiltinCall():
			out = append(out, missingInstead(&in[i], missingType(relos[n], x))...)
		default:
			if prints && (wide || ins.OpCode.Class().IsALU()) {
				p.addShows(relos[n], uint32(ins.Constant), k)
			}
			out = append(out, ins)
		}
	}
	return append(out, in[next:]...), nil
}
