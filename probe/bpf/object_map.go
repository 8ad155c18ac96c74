package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// addMaps adds the maps of a file: all, or those that its programs use.
func (o *Object) addMaps(spec *ebpf.CollectionSpec, x *externs, used bool) error {
	if x.options != nil {
		o.Maps = append(o.Maps, *x.options)
	}
	wanted := map[string]bool{}
	for _, p := range o.Programs {
		for _, name := range p.maps {
			wanted[name] = true
		}
	}
	for _, name := range sortedKeys(wanted) { // the maps in a wanted map of maps are wanted too
		if s := spec.Maps[name]; s != nil {
			for _, kv := range s.Contents {
				if inner, ok := kv.Value.(string); ok {
					wanted[inner] = true
				}
			}
		}
	}
	var records map[int]*Type
	for _, name := range sortedKeys(spec.Maps) {
		if used && !wanted[name] {
			continue
		}
		if of := x.addresses[name]; of != "" && wanted[name] {
			return fmt.Errorf("section %q: %s has addresses in it (of texts, variables or functions), which would be 0: write arrays, as char names[3][8] for const char *names[3]", name, of)
		}
		if u, ok := x.unselected[name]; ok && wanted[name] {
			return fmt.Errorf("map %q has program %q in its values, of section %q, which is not selected: select that section too, with a comma between the two", name, u.program, u.section)
		}
		m, err := objectMap(name, spec.Maps[name])
		if err != nil {
			return fmt.Errorf("map %q: %w", name, err)
		}
		if m.Kind == RingBuf || m.Kind == PerfEvents {
			if records == nil {
				records = recordTypes(spec.Types)
			}
			m.Records = records
		}
		o.Maps = append(o.Maps, m)
	}
	return o.addInner()
}

// addInner gives programs the maps that their maps contain.
func (o *Object) addInner() error {
	for i := range o.Programs {
		p := &o.Programs[i]
		for _, name := range p.maps {
			n := slices.IndexFunc(o.Maps, func(m MapSpec) bool { return m.Name == name })
			if n < 0 {
				return fmt.Errorf("program %q: no map %q", p.Name, name)
			}
			if m := &o.Maps[n]; mapsOfMaps.has(m.Kind) {
				for _, inner := range m.Values {
					p.mapNumber(inner)
				}
			}
		}
	}
	return nil
}

// defaultStacks is the default size of a map of stacks.
const defaultStacks = 1024

// Flags of maps that change our behavior (BPF_F_RDONLY_PROG). Others only say how the
// kernel should allocate.
const flagReadOnlyProg = 1 << 7

func objectMap(name string, s *ebpf.MapSpec) (MapSpec, error) {
	if s.Pinning != ebpf.PinNone {
		return MapSpec{}, errors.New("pinning is not supported: there is no bpf file system")
	}
	m := MapSpec{
		Name: name, Kind: MapKind(s.Type), KeySize: s.KeySize, ValueSize: s.ValueSize,
		MaxEntries: s.MaxEntries, ReadOnly: s.Flags&flagReadOnlyProg != 0, Extra: s.MapExtra,
	}
	m.KeyType, m.ValueType = newType(s.Key), newType(s.Value)
	if m.Kind == RingBuf {
		m.KeySize, m.ValueSize = 0, 0 // of records that are declared
	}
	if m.Kind == StackTrace { // tools leave the sizes open, and set them when they load it
		m.KeySize = 4
		if m.ValueSize == 0 {
			m.ValueSize = 8 * maxPCs
		}
		if m.MaxEntries == 0 {
			m.MaxEntries = defaultStacks
		}
	}
	if !knownMaps.has(m.Kind) {
		return MapSpec{}, fmt.Errorf("%v (%v) is not supported", m.Kind, s.Type)
	}
	for _, kv := range s.Contents {
		key, ok := kv.Key.(uint32)
		switch val := kv.Value.(type) {
		case []byte:
			ok = ok && key == 0 && len(s.Contents) == 1 && m.Kind == Array
			m.Contents = bytes.Clone(val)
		case string:
			ok = ok && (mapsOfMaps.has(m.Kind) || m.Kind == ProgArray) && key < m.MaxEntries
			if m.Values == nil {
				m.Values = map[uint32]string{}
			}
			m.Values[key] = val
		default:
			ok = false
		}
		if !ok {
			return MapSpec{}, errors.New("initial contents are only supported for global variables, and of maps of maps and of programs")
		}
	}
	return m, nil
}
