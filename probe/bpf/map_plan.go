package bpf

import "fmt"

// plan checks the specification, places the parts and returns the size.
func (m *Map) plan() (int, error) {
	s := &m.spec
	switch kind := s.Kind; {
	case kind == RingBuf:
		return m.planRing()
	case queueMaps.has(kind):
		if s.KeySize != 0 {
			return 0, fmt.Errorf("keys of %d bytes: a %v has none", s.KeySize, kind)
		}
	case m.hashed(), kind == HashOfMaps:
		if s.KeySize == 0 || s.KeySize > MaxKeySize {
			return 0, fmt.Errorf("keys of %d bytes: want 1 to %d: %w", s.KeySize, MaxKeySize, ErrMapLimit)
		}
	case kind == LPMTrie:
		if s.KeySize <= triePrefix || s.KeySize > triePrefix+trieMaxData {
			return 0, fmt.Errorf("keys of %d bytes: want %d to %d, the first %d of which are the length in bits: %w", s.KeySize, triePrefix+1, triePrefix+trieMaxData, triePrefix, ErrMapLimit)
		}
	case !knownMaps.has(kind):
		return 0, fmt.Errorf("%v is not supported", kind)
	case s.KeySize != 4:
		return 0, fmt.Errorf("keys of %d bytes: %s has keys of 4", s.KeySize, quoteKind(kind, s.Name))
	}
	switch {
	case s.ValueSize == 0 || s.ValueSize > MaxValueSize:
		return 0, fmt.Errorf("values of %d bytes: want 1 to %d: %w", s.ValueSize, MaxValueSize, ErrMapLimit)
	case s.MaxEntries == 0 || s.MaxEntries > MaxEntries:
		return 0, fmt.Errorf("%d entries: want 1 to %d: %w", s.MaxEntries, MaxEntries, ErrMapLimit)
	case len(s.Contents) > int(s.ValueSize) && (s.Kind != Array || s.ValueSize%8 != 0 || len(s.Contents) > int(s.ValueSize)*int(s.MaxEntries)):
		return 0, fmt.Errorf("contents of %d bytes for a value of %d", len(s.Contents), s.ValueSize)
	}
	if s.LockAt != 0 && (s.LockAt+3 > s.ValueSize || s.LockAt%4 != 1 || s.Kind == PerCPUArray || s.Kind == PerCPUHash || s.Kind == PerCPULRU) {
		return 0, fmt.Errorf("a lock at offset %d of its values: want a whole word of a value that all vCPUs share", s.LockAt-1)
	}
	if s.Kind == ProgArray || s.Kind == CgroupArray || mapsOfMaps.has(s.Kind) {
		m.values = mapHeader
		return mapHeader, nil // its contents are not in memory
	}
	m.perCPU = s.Kind == PerCPUArray || s.Kind == PerCPUHash || s.Kind == PerCPULRU
	m.stride = roundUp(int(s.ValueSize), 8)
	m.zero = make([]byte, m.stride)
	m.entries = int(s.MaxEntries)
	m.values = mapHeader
	switch {
	case m.hashed(), s.Kind == LPMTrie:
		m.planHash()
	case s.Kind == StackTrace:
		if err := m.planStacks(); err != nil {
			return 0, err
		}
	case s.Kind == BloomFilter:
		return m.planBloom()
	}
	copies := m.copies()
	if m.perCPU {
		// Values of different vCPUs share no cache line.
		for m.entries*m.stride%64 != 0 {
			m.entries++
		}
	}
	if m.entries*copies > elemMask {
		return 0, fmt.Errorf("%d values in all: %w", m.entries*copies, ErrMapLimit)
	}
	size := m.values + m.entries*copies*m.stride
	if lruMaps.has(s.Kind) {
		m.extra = size
		size += 8 * m.entries
	}
	if size > MaxMapSize {
		return 0, fmt.Errorf("%d bytes of memory, more than %d: %w", size, MaxMapSize, ErrMapLimit)
	}
	return size, nil
}
