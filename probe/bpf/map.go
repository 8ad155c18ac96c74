package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/btf"
)

// MapKind is the type of a map, as Linux numbers them (enum bpf_map_type).
type MapKind uint32

// The kinds of map.
const (
	Hash        MapKind = 1
	Array       MapKind = 2
	ProgArray   MapKind = 3
	PerfEvents  MapKind = 4 // accepted by NewMap as a RingBuf of default size
	PerCPUHash  MapKind = 5
	PerCPUArray MapKind = 6
	StackTrace  MapKind = 7
	CgroupArray MapKind = 8
	LRUHash     MapKind = 9
	PerCPULRU   MapKind = 10
	LPMTrie     MapKind = 11
	ArrayOfMaps MapKind = 12
	HashOfMaps  MapKind = 13
	Queue       MapKind = 22
	Stack       MapKind = 23
	RingBuf     MapKind = 27
	TaskStorage MapKind = 29
	BloomFilter MapKind = 30
)

// mapNames are Linux's names of the kinds.
var mapNames = map[MapKind]string{
	Hash: "hash", Array: "array", ProgArray: "prog_array", PerfEvents: "perf_event_array", PerCPUHash: "percpu_hash", PerCPUArray: "percpu_array",
	StackTrace: "stack_trace", CgroupArray: "cgroup_array", LRUHash: "lru_hash", PerCPULRU: "lru_percpu_hash", LPMTrie: "lpm_trie", ArrayOfMaps: "array_of_maps",
	HashOfMaps: "hash_of_maps", Queue: "queue", Stack: "stack", RingBuf: "ringbuf", TaskStorage: "task_storage", BloomFilter: "bloom_filter",
}

// String returns Linux's name of the kind.
func (k MapKind) String() string {
	if name, ok := mapNames[k]; ok {
		return name
	}
	return fmt.Sprintf("map type %d", uint32(k))
}

// mapKinds is a set of kinds.
type mapKinds uint32

const (
	hashMaps   mapKinds = 1<<Hash | 1<<PerCPUHash | 1<<LRUHash | 1<<PerCPULRU
	lruMaps    mapKinds = 1<<LRUHash | 1<<PerCPULRU
	arrayMaps  mapKinds = 1<<Array | 1<<PerCPUArray
	elemMaps            = hashMaps | arrayMaps
	keyedMaps           = elemMaps | 1<<LPMTrie // maps with keys and values
	valueMaps           = keyedMaps | 1<<TaskStorage
	mapsOfMaps mapKinds = 1<<ArrayOfMaps | 1<<HashOfMaps
	queueMaps  mapKinds = 1<<Queue | 1<<Stack | 1<<BloomFilter
	ringMaps   mapKinds = 1 << RingBuf
	// compiledMaps are the kinds that compiled code supports; only the host supports
	// the others.
	compiledMaps = arrayMaps | ringMaps | 1<<Hash | 1<<PerCPUHash | 1<<StackTrace
	knownMaps    = valueMaps | mapsOfMaps | queueMaps | ringMaps | 1<<ProgArray | 1<<PerfEvents | 1<<StackTrace | 1<<CgroupArray
)

func (s mapKinds) has(k MapKind) bool { return k < 32 && s>>k&1 != 0 }

// InGuest reports whether programs in the guest can use maps of the kind.
func (k MapKind) InGuest() bool { return compiledMaps.has(k) }

// MapSpec describes a map.
type MapSpec struct {
	Name       string
	Kind       MapKind
	KeySize    uint32            // 4 for arrays, 1 to MaxKeySize for hashes, 0 for rings and queues
	ValueSize  uint32            // 1 to MaxValueSize bytes, 0 for rings
	MaxEntries uint32            // for rings their size in bytes, a power of two of at least MinRingSize
	ReadOnly   bool              // programs may not write the values (constants of an object file)
	Frozen     bool              // nor may anything else: the values are Contents as long as a program uses the map
	Contents   []byte            // first bytes of an array's first value; of values of a multiple of 8 bytes also of those that follow
	LockAt     uint32            // 1 + offset of the lock in a value; 0: it has none
	Extra      uint64            // map_extra: how many hashes a BloomFilter has
	Values     map[uint32]string // for a map of maps or programs: their names

	KeyType, ValueType *Type         // nil: not known
	Records            map[int]*Type // possible records of a ring, by size
}

// RecordType returns the type of a ring's record of n bytes, nil if it is not known.
func (s *MapSpec) RecordType(n int) *Type {
	if s.ValueType != nil {
		if size, err := btf.Sizeof(s.ValueType.t); err == nil && size == n {
			return s.ValueType
		}
	}
	return s.Records[n]
}

// Limits of a map.
const (
	MaxKeySize   = 1<<14 + maxGuestKey
	MaxValueSize = 1 << 20
	MaxEntries   = 1 << 20
	MaxMapSize   = 512 << 20 // bytes of memory that one map, and all of one object, may take
	MinRingSize  = 4096
	MaxRingSize  = 64 << 20

	maxGuestKey  = 512     // the longest keys that compiled programs handle
	perfRingSize = 1 << 20 // of a map declared as PerfEvents
)

// ErrMapLimit is the cause if a map is rejected for its size.
var ErrMapLimit = errors.New("over the limit")

// Memory returns the bytes of memory that the map takes, for a machine of cpus vCPUs.
// For a size over a limit the error wraps ErrMapLimit.
func (s MapSpec) Memory(cpus int) (int, error) { return (&Map{spec: s, cpus: cpus}).plan() }

// Map is a map in memory that programs on the host and in the guest share. The places
// of its parts are decided when it is made and kept here, out of the guest's reach:
// values in the memory itself are never used as a size, an offset or an index without
// being bounded first. docs/programs.md describes the layout byte by byte. All
// methods may be called from any thread until Close.
type Map struct {
	spec MapSpec
	cpus int
	mem  Memory
	area Area

	perCPU  bool
	extra   int                 // offset of further data of the kind: see the map's file
	inner   map[string]*Map     // of a map of maps, by key
	progs   map[uint32]*Program // of a ProgArray
	stride  int                 // of values, a multiple of 8
	entries int                 // elements of one CPU: of an array, or slots of a hash; padded for per-CPU arrays
	values  int                 // offset of the values: entries for each CPU in turn
	zero    []byte              // one value
	hash    hashGeometry
	trie    *trie // of a LPMTrie
	ring    ringState
	writer  RingWriter // of a ring of NewWriter
}

// mapHeader is the size of the header that every map starts with. Only words written
// by several parties have cache lines of their own.
const (
	mapHeader = 256

	hdrCount = 0   // hash: elements in it
	hdrHead  = 0   // ring: bytes ever reserved
	hdrTail  = 64  // ring: bytes ever consumed; the host writes it
	hdrLost  = 128 // ring: records lost for lack of room
)

// NewMap makes an empty map for a machine of cpus vCPUs in memory from mem. Errors
// name the map; for a size over a limit they wrap ErrMapLimit.
func NewMap(spec MapSpec, cpus int, mem Memory) (*Map, error) {
	if spec.Kind == PerfEvents {
		spec.Kind, spec.KeySize, spec.ValueSize, spec.MaxEntries = RingBuf, 0, 0, perfRingSize
	}
	if spec.Kind == TaskStorage {
		spec.KeySize, spec.KeyType = storageKeySize, storageKey
	}
	m := &Map{spec: spec, cpus: cpus, mem: mem}
	if cpus < 1 || cpus > 1<<10 {
		return nil, fmt.Errorf("make map %s: %d vCPUs: want 1 to 1024", quoteKind(spec.Kind, spec.Name), cpus)
	}
	size, err := m.plan()
	if err != nil {
		return nil, fmt.Errorf("make map %s: %w", quoteKind(spec.Kind, spec.Name), err)
	}
	if m.area, err = mem.Alloc(size); err != nil {
		return nil, fmt.Errorf("make map %s: allocate %d bytes: %w", quoteKind(spec.Kind, spec.Name), size, err)
	}
	if len(m.area.Bytes) < size || !aligned(m.area.Bytes, 64) || m.area.Addr%64 != 0 {
		panic("BUG: map memory is short or not aligned")
	}
	m.area.Bytes = m.area.Bytes[:size:size]
	copy(m.area.Bytes[min(m.values, size):], spec.Contents)
	if spec.Kind == LPMTrie {
		m.trie = &trie{m: m}
	}
	return m, nil
}

// Spec returns the specification of the map.
func (m *Map) Spec() MapSpec { return m.spec }

// CPUs returns the number of vCPUs that the map is for.
func (m *Map) CPUs() int { return m.cpus }

// Size returns the bytes of memory of the map.
func (m *Map) Size() int { return len(m.area.Bytes) }

// PerCPU reports whether every vCPU has its own values.
func (m *Map) PerCPU() bool { return m.perCPU }

// Close frees the memory. No program may use the map any more.
func (m *Map) Close() {
	if m.area.Bytes != nil {
		m.mem.Free(m.area)
		m.area = Area{}
	}
}

// segment returns the memory that a program's pointers to values may reach.
func (m *Map) segment() segment {
	if !valueMaps.has(m.spec.Kind) {
		return segment{}
	}
	return segment{
		bytes: m.area.Bytes[m.values:], stride: uint64(m.stride), count: uint64(m.entries * m.copies()),
		limit: uint64(m.spec.ValueSize), readOnly: m.spec.ReadOnly,
	}
}

// valueAt returns the value in slot i of a vCPU; cpu is 0 for shared values.
func (m *Map) valueAt(i, cpu int) []byte {
	at := m.values + (cpu*m.entries+i)*m.stride
	return m.area.Bytes[at : at+int(m.spec.ValueSize)]
}

// copies returns how many values each key has.
func (m *Map) copies() int {
	if m.perCPU {
		return m.cpus
	}
	return 1
}
