package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

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
		m, err := o.objectMap(name, spec.Maps[name])
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

// Sizes of maps whose definitions leave the size to the tool that loads them.
const (
	defaultStacks  = 1024
	defaultRing    = 256 << 10
	defaultEntries = 10240    // what most tools set
	defaultMemory  = 16 << 20 // the most memory of a map with a default size,
	defaultCPUs    = 16       // on a machine with this many vCPUs
)

// defaultSize returns the number of entries of a map whose definition has none.
func (m *MapSpec) defaultSize() uint32 {
	switch {
	case m.Kind == RingBuf:
		return defaultRing
	case m.Kind == StackTrace:
		return defaultStacks
	}
	n := uint32(defaultEntries)
	for sized := *m; n > 1; n /= 2 {
		sized.MaxEntries = n
		plan := Map{spec: sized, cpus: defaultCPUs}
		if size, err := plan.plan(); err == nil && size <= defaultMemory {
			break
		}
	}
	return n
}

// ParseMapEntries reads sizes of maps, for Selection.MapEntries: NAME=N with commas
// between.
func ParseMapEntries(text string) (map[string]uint32, error) {
	out := map[string]uint32{}
	if text == "" {
		return out, nil
	}
	for _, s := range strings.Split(text, ",") {
		name, number, ok := strings.Cut(s, "=")
		n, err := strconv.ParseUint(number, 0, 32)
		if _, twice := out[name]; !ok || err != nil || n == 0 || name == "" || twice {
			return nil, fmt.Errorf("map entries %q: want NAME=N with commas between, each name once, and N at least 1", text)
		}
		out[name] = uint32(n)
	}
	return out, nil
}

// setEntries sets the sizes of maps.
func (o *Object) setEntries(set map[string]uint32) error {
	for _, name := range sortedKeys(set) {
		var have []string
		found := false
		for i := range o.Maps {
			m := &o.Maps[i]
			if len(m.Contents) > 0 || m.Name == kconfigName || isData(m.Name) {
				continue // of global variables
			}
			have = append(have, m.Name)
			if m.Name != name {
				continue
			}
			found = true
			for key := range m.Values {
				if key >= set[name] {
					return fmt.Errorf("map %q: %d entries are too few: the file has a value for entry %d", name, set[name], key)
				}
			}
			m.MaxEntries = set[name]
		}
		if !found {
			return fmt.Errorf("no map %q whose size could be set: the programs that are loaded use %q", name, have)
		}
	}
	return nil
}

// setDefaults sets the sizes of maps that have none.
func (o *Object) setDefaults() {
	for i := range o.Maps {
		m := &o.Maps[i]
		if m.MaxEntries != 0 || m.Kind == PerfEvents {
			continue
		}
		m.MaxEntries = m.defaultSize()
		what := "entries"
		if m.Kind == RingBuf {
			what = "bytes"
		}
		o.note("map %q has no size in the file: it has %d %s here (--map-entries %s=N sets another size)", m.Name, m.MaxEntries, what, m.Name)
	}
}

// note adds a note for the user.
func (o *Object) note(format string, args ...any) {
	o.Notes = append(o.Notes, fmt.Sprintf(format, args...))
}

// refusedMaps are reasons why types of maps are not supported.
var refusedMaps = map[MapKind]string{
	19: storedInObject, 21: storedInObject, 24: storedInObject, 28: storedInObject, 32: storedInObject,
	26: "it is a table of functions for the guest's kernel",
	31: "a process of the guest would fill it",
	33: "it is memory that the guest's kernel shares with programs",
}

const storedInObject = "the storage is part of an object of the guest's kernel: use a hash with the object's address or number as the key"

// Flags of maps that change our behavior (BPF_F_RDONLY_PROG). Others only say how the
// kernel should allocate.
const flagReadOnlyProg = 1 << 7

func (o *Object) objectMap(name string, s *ebpf.MapSpec) (MapSpec, error) {
	if s.Pinning != ebpf.PinNone {
		o.note("map %q is not pinned: only the programs of this file share it", name)
	}
	m := MapSpec{
		Name: name, Kind: MapKind(s.Type), KeySize: s.KeySize, ValueSize: s.ValueSize,
		MaxEntries: s.MaxEntries, ReadOnly: s.Flags&flagReadOnlyProg != 0, Extra: s.MapExtra,
	}
	m.Frozen = m.ReadOnly && m.Kind == Array && isConstants(name)
	m.KeyType, m.ValueType = newType(s.Key), newType(s.Value)
	if valueMaps.has(m.Kind) && s.Value != nil {
		m.LockAt = lockOf(s.Value)
	}
	if m.Kind == RingBuf {
		m.KeySize, m.ValueSize = 0, 0 // of records that are declared
	}
	if m.Kind == TaskStorage {
		if m.KeySize != 4 {
			return MapSpec{}, fmt.Errorf("keys of %d bytes: %s has keys of 4", m.KeySize, quoteKind(m.Kind, m.Name))
		}
		m.KeySize, m.KeyType = storageKeySize, storageKey
	}
	if m.Kind == StackTrace { // tools leave the sizes open, and set them when they load it
		m.KeySize = 4
		if m.ValueSize == 0 {
			m.ValueSize = 8 * maxPCs
		}
	}
	if !knownMaps.has(m.Kind) {
		why := refusedMaps[m.Kind]
		if why != "" {
			why = ": " + why
		}
		return MapSpec{}, fmt.Errorf("%v (%v) is not supported%s", m.Kind, s.Type, why)
	}
	for _, kv := range s.Contents {
		key, ok := kv.Key.(uint32)
		switch val := kv.Value.(type) {
		case []byte:
			ok = ok && key == 0 && len(s.Contents) == 1 && m.Kind == Array
			m.Contents = bytes.Clone(val)
		case string:
			ok = ok && (mapsOfMaps.has(m.Kind) || m.Kind == ProgArray) && (key < m.MaxEntries || m.MaxEntries == 0)
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
