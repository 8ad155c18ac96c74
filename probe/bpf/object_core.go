package bpf

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// contextTypes describes the context in BTF, so that accesses through
// vmlinux.h's struct pt_regs, which clang marks for relocation, find their
// fields. Newer kernels have cs and ss in anonymous unions; the names are found
// all the same.
var contextTypes = sync.OnceValues(func() (*btf.Spec, error) {
	long := &btf.Int{Name: "unsigned long", Size: 8}
	regs := &btf.Struct{Name: "pt_regs", Size: RegsSize}
	for i, name := range insn.PtNames {
		regs.Members = append(regs.Members, btf.Member{Name: name, Type: long, Offset: btf.Bits(64 * i)})
	}
	b, err := btf.NewBuilder([]btf.Type{regs}, nil)
	if err != nil {
		return nil, err
	}
	return b.Spec()
})

// relocateTypes applies the relocations that depend on types (CO-RE). The only
// type of a kernel that we know is the context.
func relocateTypes(in asm.Instructions) error {
	var relos []*btf.CORERelocation
	var where []int
	for i := range in {
		if r := btf.CORERelocationMetadata(&in[i]); r != nil {
			relos, where = append(relos, r), append(where, i)
		}
	}
	if len(relos) == 0 {
		return nil
	}
	types, err := contextTypes()
	if err != nil {
		return fmt.Errorf("describe the context: %w", err)
	}
	noIDs := func(t btf.Type) (btf.TypeID, error) { return 0, fmt.Errorf("the ID of type %v is not known", t) }
	fixups, err := btf.CORERelocate(relos, []*btf.Spec{types}, binary.LittleEndian, noIDs)
	if err != nil {
		return fmt.Errorf("relocate types: %w", err)
	}
	for k, i := range where {
		if err := fixups[k].Apply(&in[i]); err != nil {
			return fmt.Errorf("relocate types: %w", err)
		}
		if in[i].IsBuiltinCall() {
			return fmt.Errorf("it depends on a kernel type (CO-RE) other than struct pt_regs: %v", relos[k])
		}
	}
	return nil
}
