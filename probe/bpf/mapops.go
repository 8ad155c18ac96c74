package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Flags of Update (BPF_ANY and so on).
const (
	UpdateAny     = 0
	UpdateNoExist = 1 // only a new key
	UpdateExist   = 2 // only an existing key
)

// Errors that helpers return to programs, negated.
const (
	errPerm    = 1
	errNoEnt   = 2
	errTooBig  = 7
	errAgain   = 11
	errNoMem   = 12
	errFault   = 14
	errBusy    = 16
	errExist   = 17
	errInval   = 22
	errNoSpace = 28
	errRange   = 34
	errNotSup  = 95
)

// Errors of a map's methods.
var (
	ErrKeyNotFound = errors.New("key not found")
	ErrKeyExists   = errors.New("key exists")
	ErrMapFull     = errors.New("map is full")
	ErrMapBusy     = errors.New("another vCPU is changing the key")
	ErrMapKind     = errors.New("not possible with this kind of map")
)

func mapError(errno int) error {
	switch errno {
	case 0:
		return nil
	case errNoEnt:
		return ErrKeyNotFound
	case errExist:
		return ErrKeyExists
	case errTooBig, errNoSpace:
		return ErrMapFull
	case errBusy:
		return ErrMapBusy
	}
	return ErrMapKind
}

// find returns the slot of key.
func (m *Map) find(key []byte) (int, bool) {
	switch {
	case arrayMaps.has(m.spec.Kind):
		i := binary.LittleEndian.Uint32(key)
		return int(i), i < m.spec.MaxEntries
	case m.hashed():
		return m.hashFind(key)
	case m.trie != nil:
		return m.trie.find(key)
	case m.spec.Kind == StackTrace:
		i := binary.LittleEndian.Uint32(key)
		return int(i), int64(i) < int64(m.entries) && m.hasStack(int(i))
	}
	return 0, false
}

// update sets the value of key. For a per-CPU map it is the value of vCPU cpu,
// and a new key's other values become zero; with cpu < 0, val holds the values
// of all vCPUs, each padded to a multiple of 8 bytes. It returns an errno.
func (m *Map) update(key, val []byte, flags uint64, cpu int) int {
	switch {
	case arrayMaps.has(m.spec.Kind):
		switch i := binary.LittleEndian.Uint32(key); {
		case flags > UpdateExist:
			return errInval
		case i >= m.spec.MaxEntries:
			return errTooBig
		case flags == UpdateNoExist:
			return errExist
		default:
			m.write(int(i), val, cpu)
			return 0
		}
	case m.hashed():
		return m.hashUpdate(key, val, flags, cpu)
	case m.trie != nil:
		return m.trie.update(key, val, flags)
	}
	return errInval
}

// write stores the values of update.
func (m *Map) write(slot int, val []byte, cpu int) {
	if m.spec.LockAt != 0 && !m.perCPU {
		m.spec.copyAround(m.valueAt(slot, 0), val)
		return
	}
	if !m.perCPU {
		copyShared(m.valueAt(slot, 0), val)
		return
	}
	if cpu >= 0 {
		copyShared(m.valueAt(slot, cpu), val)
		return
	}
	for c := range m.cpus {
		copyShared(m.valueAt(slot, c), val[c*m.stride:])
	}
}

// remove deletes key and returns an errno.
func (m *Map) remove(key []byte) int {
	switch {
	case m.hashed():
		return m.hashDelete(key)
	case m.trie != nil:
		return m.trie.remove(key)
	case m.spec.Kind == StackTrace:
		return m.dropStack(key)
	}
	return errInval
}

// copyShared copies len(dst) bytes into memory of a map that other vCPUs may access
// at the same time. It writes whole aligned words, so that a reader sees each either
// old or new; keys and values have room for a whole last word.
func copyShared(dst, src []byte) {
	n := len(dst)
	src = src[:n]
	dst = dst[:roundUp(n, 8)]
	i := 0
	for ; i+8 <= n; i += 8 {
		store64(dst, i, binary.LittleEndian.Uint64(src[i:]))
	}
	if i < n {
		store64(dst, i, partWord(src[i:]))
	}
}

// readShared is copyShared with the shared memory as its source.
func readShared(dst, src []byte) {
	n := len(dst)
	src = src[:roundUp(n, 8)]
	i := 0
	for ; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(dst[i:], load64(src, i))
	}
	if i < n {
		w := load64(src, i)
		for ; i < n; i++ {
			dst[i] = byte(w)
			w >>= 8
		}
	}
}

func (m *Map) fail(what string, err error) error {
	return fmt.Errorf("%s in map %s: %w", what, quoteKind(m.spec.Kind, m.spec.Name), err)
}

func (m *Map) checkKey(what string, key []byte) error {
	if m.spec.Kind != StackTrace && !valueMaps.has(m.spec.Kind) {
		return m.fail(what, ErrMapKind)
	}
	if len(key) != int(m.spec.KeySize) {
		return m.fail(what, fmt.Errorf("key of %d bytes: want %d", len(key), m.spec.KeySize))
	}
	return nil
}

// Lookup returns copies of the values of key: one, or one for each vCPU of a per-CPU
// map. Errors are ErrKeyNotFound, ErrMapKind, or about the key's length.
func (m *Map) Lookup(key []byte) ([][]byte, error) {
	if err := m.checkKey("look up a key", key); err != nil {
		return nil, err
	}
	slot, ok := m.find(key)
	if !ok {
		return nil, m.fail("look up a key", ErrKeyNotFound)
	}
	vals := m.newValues()
	m.readValues(slot, vals)
	return vals, nil
}

func (m *Map) newValues() [][]byte {
	vals := make([][]byte, m.copies())
	for i := range vals {
		vals[i] = make([]byte, m.spec.ValueSize)
	}
	return vals
}

func (m *Map) readValues(slot int, vals [][]byte) {
	for c := range vals {
		readShared(vals[c], m.valueAt(slot, c))
	}
}

// Update sets the value of key; the flag is UpdateAny, UpdateNoExist or
// UpdateExist. For a per-CPU map there must be a value for each vCPU. Errors
// are ErrKeyNotFound, ErrKeyExists, ErrMapFull, ErrMapBusy, ErrMapKind, or
// about lengths.
func (m *Map) Update(key []byte, vals [][]byte, flag uint64) error {
	const what = "update a key"
	if err := m.checkKey(what, key); err != nil {
		return err
	}
	if len(vals) != m.copies() {
		return m.fail(what, fmt.Errorf("%d values: want %d", len(vals), m.copies()))
	}
	flat := make([]byte, len(vals)*m.stride)
	for i, v := range vals {
		if len(v) != int(m.spec.ValueSize) {
			return m.fail(what, fmt.Errorf("value of %d bytes: want %d", len(v), m.spec.ValueSize))
		}
		copy(flat[i*m.stride:], v)
	}
	if m.spec.Frozen && !bytes.Equal(bytes.TrimRight(flat, "\x00"), bytes.TrimRight(m.spec.Contents, "\x00")) {
		return m.fail(what, errFrozen)
	}
	if err := mapError(m.update(key, flat, flag, -1)); err != nil {
		return m.fail(what, err)
	}
	return nil
}

// Restore sets the map's contents to entries: a key and its values each, as Walk
// yields them of a map of the same kind and size. No program may use the map during
// the call. It stops at the first entry that does not fit, with an error as of
// Update. A frozen map keeps its own contents.
func (m *Map) Restore(entries [][][]byte) error {
	if m.spec.Frozen {
		return nil
	}
	m.empty()
	if m.spec.Kind == Stack { // the first value in is the last one out
		entries = slices.Clone(entries)
		slices.Reverse(entries)
	}
	for _, e := range entries {
		if err := m.put(e[0], e[1:]); err != nil {
			return err
		}
	}
	return nil
}

// put is Update for all kinds of maps that Walk visits.
func (m *Map) put(key []byte, vals [][]byte) error {
	if m.spec.Kind != Queue && m.spec.Kind != Stack && m.spec.Kind != StackTrace {
		return m.Update(key, vals, UpdateAny)
	}
	const what = "put something back"
	if len(vals) != 1 || len(vals[0]) != int(m.spec.ValueSize) {
		return m.fail(what, fmt.Errorf("%d values: want one of %d bytes", len(vals), m.spec.ValueSize))
	}
	e := 0
	if m.spec.Kind != StackTrace {
		e = m.push(vals[0], UpdateAny)
	} else if err := m.checkKey(what, key); err != nil {
		return err
	} else {
		e = m.putStack(int(binary.LittleEndian.Uint32(key)), vals[0])
	}
	if err := mapError(e); err != nil {
		return m.fail(what, err)
	}
	return nil
}

// empty deletes everything, except in an array, whose elements always exist.
func (m *Map) empty() {
	if m.spec.Kind == Queue || m.spec.Kind == Stack {
		store64(m.area.Bytes, hdrCount, 0)
		return
	}
	var had [][]byte
	m.Walk(func(key []byte, _ [][]byte) bool { had = append(had, bytes.Clone(key)); return true })
	for _, key := range had {
		_ = m.Delete(key) // ErrMapKind, of an array
	}
}

// Delete removes key. Errors are ErrKeyNotFound, ErrMapBusy and ErrMapKind.
func (m *Map) Delete(key []byte) error {
	if err := m.checkKey("delete a key", key); err != nil {
		return err
	}
	if err := mapError(m.remove(key)); err != nil {
		return m.fail("delete a key", err)
	}
	return nil
}

// Walk calls f with a copy of every key and its values, until f returns false. Keys
// that are added or deleted during the walk may or may not be seen. The slices are
// reused for the next call. Values of a queue or a stack have an empty key; f is not
// called for a ring, nor for a map of maps or programs.
func (m *Map) Walk(f func(key []byte, vals [][]byte) bool) {
	if m.spec.Kind == Queue || m.spec.Kind == Stack {
		m.walkQueue(f)
		return
	}
	key, vals := make([]byte, m.spec.KeySize), m.newValues()
	for i := range m.slots() {
		switch {
		case m.hashed(), m.trie != nil:
			if !m.hashRead(i, key, vals) {
				continue
			}
		case m.spec.Kind == StackTrace && !m.hasStack(i):
			continue
		default:
			binary.LittleEndian.PutUint32(key, uint32(i))
			m.readValues(i, vals)
		}
		if !f(key, vals) {
			return
		}
	}
}

// slots returns the number of places for elements to look at, for one vCPU.
func (m *Map) slots() int {
	switch {
	case arrayMaps.has(m.spec.Kind):
		return int(m.spec.MaxEntries)
	case m.hashed() || m.trie != nil || m.spec.Kind == StackTrace:
		return m.entries
	}
	return 0
}
