package bpf

import "fmt"

// A queue returns its oldest value first, a stack its newest; a bloom filter is a set
// of bits that can tell that a value is certainly not in it. A writer of a queue
// holds the word at hdrLock; code that finds it held retries a bounded number of
// times and fails with EBUSY.
const (
	hdrLock  = 64 // of a queue or a stack: 1 = being changed
	hdrFirst = 8  // of a queue: place of its first value; hdrCount is the number of values
)

// lock takes the lock, or reports that it could not.
func (m *Map) lock() bool {
	for try := range hashTries {
		yieldProcessor(try)
		if cas64(m.area.Bytes, hdrLock, 0, 1) {
			return true
		}
	}
	return false
}

func (m *Map) unlock() { store64(m.area.Bytes, hdrLock, 0) }

// queuedSlot returns the place of value i in the queue, counted from the next one
// out.
func (m *Map) queuedSlot(i uint64) int {
	if m.spec.Kind == Stack {
		i = load64(m.area.Bytes, hdrCount) - 1 - i
	}
	return int((load64(m.area.Bytes, hdrFirst) + i) % uint64(m.spec.MaxEntries))
}

// push adds a value. With UpdateExist a full queue drops its oldest value for it.
func (m *Map) push(val []byte, flags uint64) int {
	if m.spec.Kind == BloomFilter {
		return m.bloomAdd(val, flags)
	}
	if flags != UpdateAny && flags != UpdateExist {
		return errInval
	}
	if !m.lock() {
		return errBusy
	}
	defer m.unlock()
	mem, n := m.area.Bytes, uint64(m.spec.MaxEntries)
	count, first := load64(mem, hdrCount), load64(mem, hdrFirst)
	if count >= n {
		if flags != UpdateExist {
			return errTooBig
		}
		// The oldest value of a stack is at its bottom, as a queue's is at its front.
		first, count = (first+1)%n, n-1
	}
	copyShared(m.valueAt(int((first+count)%n), 0), val)
	store64(mem, hdrFirst, first)
	store64(mem, hdrCount, count+1)
	return 0
}

// takeValue copies the next value into val, and removes it if out is set.
func (m *Map) takeValue(val []byte, out bool) int {
	if !m.lock() {
		return errBusy
	}
	defer m.unlock()
	mem := m.area.Bytes
	count := load64(mem, hdrCount)
	if count == 0 {
		clear(val)
		return errNoEnt
	}
	copy(val, m.valueAt(m.queuedSlot(0), 0))
	if out {
		if m.spec.Kind == Queue {
			store64(mem, hdrFirst, (load64(mem, hdrFirst)+1)%uint64(m.spec.MaxEntries))
		}
		store64(mem, hdrCount, count-1)
	}
	return 0
}

// walkQueue is Walk for queues and stacks: in the order in which values would be
// taken out.
func (m *Map) walkQueue(f func(key []byte, vals [][]byte) bool) {
	vals := m.newValues()
	for i := uint64(0); i < load64(m.area.Bytes, hdrCount); i++ {
		readShared(vals[0], m.valueAt(m.queuedSlot(i), 0))
		if !f(nil, vals) {
			return
		}
	}
}

// bloomHashes is the default number of hashes of a filter
// (kernel/bpf/bloom_filter.c).
const bloomHashes = 5

// hashes returns how many hashes a bloom filter has.
func (s *MapSpec) hashes() int {
	if n := int(s.Extra & 0xf); n != 0 {
		return n
	}
	return bloomHashes
}

// planBloom places the bits: 7/5 for each hash of each value, rounded up to a power of
// two, as in Linux.
func (m *Map) planBloom() (int, error) {
	m.entries = max(nextPow2(int(m.spec.MaxEntries)*m.spec.hashes()*7/5), 64)
	if m.extra = mapHeader; m.entries/8 > MaxMapSize {
		return 0, fmt.Errorf("%d bits: %w", m.entries, ErrMapLimit)
	}
	m.values = m.extra + m.entries/8
	return m.values, nil
}

// bit returns the word and the bit of one of a value's hashes.
func (m *Map) bit(val []byte, i int) (at int, bit uint64) {
	h := int(uint32(hashStep(uint64(hashOf(val)), uint64(i)))) & (m.entries - 1)
	return m.extra + h/64*8, 1 << (h % 64)
}

// bloomAdd puts a value into the filter.
func (m *Map) bloomAdd(val []byte, flags uint64) int {
	if flags != UpdateAny {
		return errInval
	}
	mem := m.area.Bytes
	for i := range m.spec.hashes() {
		at, bit := m.bit(val, i)
		for w := load64(mem, at); w&bit == 0 && !cas64(mem, at, w, w|bit); w = load64(mem, at) {
		}
	}
	return 0
}

// bloomTest returns 0 if the value may be in the filter, errNoEnt if it is not.
func (m *Map) bloomTest(val []byte) int {
	for i := range m.spec.hashes() {
		if at, bit := m.bit(val, i); load64(m.area.Bytes, at)&bit == 0 {
			return errNoEnt
		}
	}
	return 0
}
