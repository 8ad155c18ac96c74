package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// MaxObjectSize bounds the size of an object file in bytes.
const MaxObjectSize = 16 << 20

// Errors of LoadObject.
var (
	ErrObjectTooLarge = fmt.Errorf("larger than %d bytes", MaxObjectSize)
	ErrNoPrograms     = errors.New("no programs for probes")
)

// Object is an object file as clang makes them for the bpf target, parsed and
// not yet in memory.
type Object struct {
	Maps     []MapSpec // in the order of their names; global variables are arrays named .data, .bss, .rodata
	Programs []ObjectProgram
}

// ObjectProgram is one program of an object.
type ObjectProgram struct {
	Name     string // of the C function
	Section  string // kprobe/NAME or kretprobe/NAME
	Kind     Kind
	AttachTo string           // NAME, which may be empty; for a kprobe it may end in +OFFSET
	insns    asm.Instructions // with maps numbered as in maps
	maps     []string
}

// Selection says what of a file is loaded, and how.
type Selection struct {
	Section string            // only the programs in it and the maps that they use; nothing else in the file matters
	Set     map[string]string // values of constants: numbers, true and false, names of enumerations, texts
}

// LoadObject parses an object file. Programs must stand in sections kprobe/NAME
// and kretprobe/NAME; functions that they call are linked in, maps come from
// .maps and from global variables. Errors say what in the file is not supported
// or damaged, ErrNoSection where there is no section of the selection's name; the file may
// be hostile.
func LoadObject(b []byte, sel Selection) (o *Object, err error) {
	section := sel.Section
	if len(b) > MaxObjectSize {
		return nil, fmt.Errorf("load object of %d bytes: %w", len(b), ErrObjectTooLarge)
	}
	defer func() {
		// The parser is not ours and the file may be anything: should it
		// stumble, that is an error of this file and not the end of the daemon.
		if r := recover(); r != nil {
			o, err = nil, fmt.Errorf("load object: damaged file: %v", r)
		}
	}()
	if b, err = prepare(b, section); err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	if spec.ByteOrder != binary.LittleEndian {
		return nil, fmt.Errorf("load object: it is for big-endian machines")
	}
	o = new(Object)
	for _, name := range sortedKeys(spec.Programs) {
		p, err := objectProgram(name, spec.Programs[name])
		if err != nil {
			return nil, fmt.Errorf("load object: program %q in section %q: %w", name, spec.Programs[name].SectionName, err)
		}
		o.Programs = append(o.Programs, p)
	}
	if len(o.Programs) == 0 {
		return nil, fmt.Errorf("load object: %w", ErrNoPrograms)
	}
	var records map[int]*Type
	for _, name := range sortedKeys(spec.Maps) {
		if section != "" && !o.uses(name) {
			continue
		}
		m, err := objectMap(name, spec.Maps[name])
		if err != nil {
			return nil, fmt.Errorf("load object: map %q: %w", name, err)
		}
		if m.Kind == RingBuf || m.Kind == PerfEvents {
			if records == nil {
				records = recordTypes(spec.Types)
			}
			m.Records = records
		}
		o.Maps = append(o.Maps, m)
	}
	if err := o.setConstants(spec.Variables, sel.Set); err != nil {
		return nil, fmt.Errorf("load object: %w", err)
	}
	return o, nil
}

// uses reports whether a program refers to a map.
func (o *Object) uses(name string) bool {
	return slices.ContainsFunc(o.Programs, func(p ObjectProgram) bool { return slices.Contains(p.maps, name) })
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Flags of maps that change what we do (BPF_F_RDONLY_PROG). Others only say how
// the kernel should allocate.
const flagReadOnlyProg = 1 << 7

func objectMap(name string, s *ebpf.MapSpec) (MapSpec, error) {
	switch {
	case name == ".kconfig" || name == ".ksyms":
		return MapSpec{}, errors.New("kernel configuration and symbols are not supported")
	case s.InnerMap != nil:
		return MapSpec{}, errors.New("maps of maps are not supported")
	case s.Pinning != ebpf.PinNone:
		return MapSpec{}, errors.New("pinning is not supported: there is no bpf file system")
	}
	m := MapSpec{
		Name: name, Kind: MapKind(s.Type), KeySize: s.KeySize, ValueSize: s.ValueSize,
		MaxEntries: s.MaxEntries, ReadOnly: s.Flags&flagReadOnlyProg != 0,
	}
	m.KeyType, m.ValueType = newType(s.Key), newType(s.Value)
	if m.Kind == RingBuf {
		m.KeySize, m.ValueSize = 0, 0 // of records that are declared
	}
	for _, kv := range s.Contents {
		key, ok1 := kv.Key.(uint32)
		val, ok2 := kv.Value.([]byte)
		if !ok1 || !ok2 || key != 0 || len(s.Contents) != 1 {
			return MapSpec{}, errors.New("initial contents are only supported for global variables")
		}
		m.Contents = bytes.Clone(val)
	}
	switch m.Kind {
	case Hash, Array, PerCPUHash, PerCPUArray, RingBuf, PerfEvents:
	default:
		return MapSpec{}, fmt.Errorf("%v (%v) is not supported", m.Kind, s.Type)
	}
	return m, nil
}

func objectProgram(name string, s *ebpf.ProgramSpec) (ObjectProgram, error) {
	p := ObjectProgram{Name: name, Section: s.SectionName}
	prefix, target, _ := strings.Cut(s.SectionName, "/")
	switch prefix {
	case "kprobe":
		p.Kind = Kprobe
	case "kretprobe":
		p.Kind = Kretprobe
	default:
		return p, errors.New("only kprobe/ and kretprobe/ are supported")
	}
	p.AttachTo = target
	var err error
	p.insns, p.maps, err = link(s.Instructions)
	return p, err
}

// link resolves the references to maps; those to functions are labels.
func link(in asm.Instructions) (asm.Instructions, []string, error) {
	in = slices.Clone(in)
	if err := relocateTypes(in); err != nil {
		return nil, nil, err
	}
	var maps []string
	for it := in.Iterate(); it.Next(); {
		ins, at := it.Ins, it.Offset
		switch {
		case at >= MaxSlots:
			return nil, nil, ErrTooLong
		case ins.IsKfuncCall():
			return nil, nil, fmt.Errorf("instruction %d calls a kernel function, which is not supported", at)
		case ins.IsLoadOfFunctionPointer():
			return nil, nil, fmt.Errorf("instruction %d takes the address of a function, which is not supported", at)
		case ins.IsLoadFromMap() && ins.Reference() != "":
			n := slices.Index(maps, ins.Reference())
			if n < 0 {
				n = len(maps)
				maps = append(maps, ins.Reference())
			}
			// The lower half names the map; the upper one is the offset in the value.
			ins.Constant = int64(uint64(ins.Constant)&^0xffffffff | uint64(n))
			*ins = ins.WithReference("")
		case ins.Reference() != "" && !ins.IsFunctionCall():
			return nil, nil, fmt.Errorf("instruction %d refers to %q in a way that is not supported", at, ins.Reference())
		}
	}
	return in, maps, nil
}
