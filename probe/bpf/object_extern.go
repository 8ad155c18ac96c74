package bpf

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Externs are names that an object refers to and does not define: options of the
// kernel's configuration, its symbols, and kernel functions that programs may call.
// Their types are in data sections of the file's BTF, which no section of the file
// corresponds to.

// kconfigName is the map of the kernel's options. The parser sees the sections of
// externs under names that it does not know, and leaves references to them to us.
const (
	kconfigName   = ".kconfig"
	kconfigHidden = "_kconfig"
	ksymsHidden   = "_ksyms"
)

// externs are the externs of one object.
type externs struct {
	kernel  *Kernel
	refs    map[string]externRef // references in code
	absent  map[string]error     // options without a value
	options *MapSpec             // nil if there are no options
	offset  map[string]uint32    // in options
	symbols map[string]btf.Type  // *btf.Var or *btf.Func

	types *btf.Spec // of the object; nil: not known
	own   *btf.Spec // those that only the object defines: see ownTypes

	unselected map[string]unselected // maps with programs that are not loaded in their values

	addresses map[string]string // data sections that contain addresses, with the variable
}

// externRef is a reference to an extern.
type externRef struct {
	weak bool
}

// newExterns finds the types of externs, in an object's BTF, and the values of
// options.
func newExterns(refs map[string]externRef, types []byte, k *Kernel) (*externs, error) {
	x := &externs{kernel: k, refs: refs, absent: map[string]error{}, offset: map[string]uint32{}, symbols: map[string]btf.Type{}}
	if len(refs) == 0 || len(types) == 0 && k == nil {
		return x, nil
	}
	// Read on its own: the parser of files requires a section for each data section.
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(types))
	if err != nil {
		return nil, fmt.Errorf("types of extern variables: %w", err)
	}
	for name, take := range map[string]func(*btf.Datasec) error{ksymsHidden: x.readSymbols, kconfigHidden: x.readOptions} {
		var section *btf.Datasec
		if err := spec.TypeByName(name, &section); errors.Is(err, btf.ErrNotFound) {
			continue
		} else if err != nil {
			return nil, err
		}
		if err := take(section); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// readSymbols reads the types of the kernel's symbols and functions.
func (x *externs) readSymbols(section *btf.Datasec) error {
	for _, v := range section.Vars {
		x.symbols[v.Type.TypeName()] = v.Type
	}
	return nil
}

// isKfunc reports whether an extern is a function of the kernel that programs can call.
func (x *externs) isKfunc(name string) bool {
	_, function := x.symbols[name].(*btf.Func)
	return function && kfuncs[name] != nil
}

// readOptions makes the map of options.
func (x *externs) readOptions(section *btf.Datasec) error {
	m := MapSpec{Name: kconfigName, Kind: Array, KeySize: 4, MaxEntries: 1, ReadOnly: true, Frozen: true}
	for _, s := range section.Vars {
		v, ok := s.Type.(*btf.Var)
		if !ok {
			return errors.New("the types of the kernel's options are damaged")
		}
		ref, used := x.refs[v.Name]
		if !used || x.kernel == nil {
			continue
		}
		size, err := btf.Sizeof(v.Type)
		if err != nil || size == 0 || size > MaxValueSize-len(m.Contents) {
			return fmt.Errorf("option %q of %d bytes: %w", v.Name, size, ErrMapLimit)
		}
		b := make([]byte, roundUp(size, 8))
		x.offset[v.Name] = uint32(len(m.Contents))
		if value, ok := x.kernel.option(v.Name); ok {
			if value, err := encodeOption(v.Type, size, value); err != nil {
				return fmt.Errorf("option %q: %w", v.Name, err)
			} else {
				copy(b, value)
			}
		} else if !ref.weak { // a weak one is 0, as in libbpf
			x.absent[v.Name] = fmt.Errorf("the guest's kernel has no option %q, or its configuration is not known", v.Name)
		}
		m.Contents = append(m.Contents, b...)
	}
	if m.ValueSize = uint32(len(m.Contents)); m.ValueSize > 0 {
		x.options = &m
	}
	return nil
}

// undefinedError rejects an unknown extern.
func (x *externs) undefinedError(name string) error {
	if x.kernel == nil {
		return fmt.Errorf("%q is extern and defined nowhere (there is no kernel whose configuration, symbols or functions could be used): attach it to a Linux guest, or give bpf check the kernel by --kernel", name)
	}
	return fmt.Errorf("%q is extern and defined nowhere, and the file has no type of it: declare it __ksym or __kconfig, and compile with -g", name)
}

// resolve resolves the extern in an instruction. It reports whether the result is an
// address of the kernel's.
func (x *externs) resolve(ins *asm.Instruction, name string, mapNumber func(string) int) (address bool, err error) {
	ref := x.refs[name]
	if err := x.absent[name]; err != nil {
		return false, err
	}
	if off, ok := x.offset[name]; ok {
		if !ins.OpCode.IsDWordLoad() {
			return false, fmt.Errorf("%q is an option of the kernel, and no function", name)
		}
		ins.Src = asm.PseudoMapValue
		ins.Constant = int64(uint64(off)<<32 | uint64(mapNumber(kconfigName)))
		*ins = ins.WithReference("")
		return false, nil
	}
	t := x.symbols[name]
	if t == nil || x.kernel == nil {
		return false, x.undefinedError(name)
	}
	*ins = ins.WithReference("")
	_, function := t.(*btf.Func)
	switch {
	case function && ins.IsFunctionCall():
		if !ref.weak {
			return false, fmt.Errorf("it calls %s, a function of the kernel, which cannot be called from outside of it", name)
		}
		replaceMissing(ins, fmt.Sprintf("it calls %s, a function of the kernel", name))
		return false, nil
	case !ins.OpCode.IsDWordLoad():
		return false, fmt.Errorf("%q is not used as an address", name)
	case function: // checks its existence: for a program it does not exist
		ins.Src, ins.Constant = 0, 0
		return false, nil
	}
	var addr uint64
	ok := false
	if x.kernel.Symbol != nil {
		addr, ok = x.kernel.Symbol(name)
	}
	if !ok && !ref.weak {
		return false, fmt.Errorf("the guest's kernel has no symbol %q", name)
	}
	if v, isVar := t.(*btf.Var); isVar && ok {
		if _, untyped := btf.UnderlyingType(v.Type).(*btf.Void); !untyped && x.kernel.perCPU(name, addr) {
			return false, fmt.Errorf("%q is a variable of the kernel's that each CPU has its own of, which programs cannot reach: for its address, declare it as extern const void %s __ksym", name, name)
		}
	}
	ins.Src, ins.Constant = 0, 0
	if ok {
		ins.Constant = int64(addr)
	}
	return true, nil
}

// missingKey is the key, in the metadata of an instruction, for the name of what it
// lacks.
type missingKey struct{}

// replaceMissing replaces an instruction of one slot by one that must be unreachable.
func replaceMissing(ins *asm.Instruction, why string) {
	call := asm.BuiltinFunc(missingCall).Call()
	call.Metadata = ins.Metadata
	call.Metadata.Set(missingKey{}, why)
	*ins = call.WithReference("")
}

// missingInstead returns instructions in place of ins, as many slots, that must be
// unreachable.
func missingInstead(ins *asm.Instruction, why string) asm.Instructions {
	ins.Metadata.Set(missingKey{}, why)
	*ins = ins.WithReference("")
	body := asm.Instructions{asm.BuiltinFunc(missingCall).Call()}
	body[0].Metadata = ins.Metadata
	if ins.OpCode.IsDWordLoad() { // jumps count slots
		body = append(body, jumpAhead(0))
	}
	return body
}

// missingCall is the helper number in instructions that cannot be executed. No helper
// has it.
const missingCall = btf.COREBadRelocationSentinel

// missingReason returns what an instruction lacks, or "".
func missingReason(ins *asm.Instruction) string {
	why, _ := ins.Metadata.Get(missingKey{}).(string)
	return why
}
