package bpf

import (
	"encoding/binary"
	"fmt"
)

// A map of stacks has one place for each number that get_stackid may return, which is
// the low bits of the stack's hash. A state word for each follows the header: 0 is
// empty, 1 is being written, else it is the hash, the number of addresses, and 2.
const (
	stackNone    = 0
	stackWriting = 1
	stackThere   = 2

	stackWindow = 64 // places that StackNear tries
)

// planStacks places the parts.
func (m *Map) planStacks() error {
	if s := m.spec.ValueSize; s%8 != 0 || s > 8*maxPCs {
		return fmt.Errorf("values of %d bytes: a stack has 8 to %d, 8 for each address", s, 8*maxPCs)
	}
	m.entries = nextPow2(m.entries)
	m.values = roundUp(mapHeader+8*m.entries, 64)
	return nil
}

// hasStack reports whether there is a stack with that number.
func (m *Map) hasStack(id int) bool { return load64(m.area.Bytes, slotWord(id)) > stackWriting }

// keepStack puts a stack into the map, unless it is already there, and returns its
// number. With stackFast stacks of the same hash count as equal. If the number
// belongs to another stack, the new one replaces it with stackReuse, and tries the
// next numbers with StackNear; otherwise the result is errExist.
func (m *Map) keepStack(pcs []uint64, flags uint64) (id int, e int) {
	var b [8 * maxPCs]byte
	stack := b[:8*len(pcs)]
	for i, pc := range pcs {
		binary.LittleEndian.PutUint64(stack[8*i:], pc)
	}
	hash := hashOf(stack)
	id = int(hash) & (m.entries - 1)
	word := uint64(hash)<<32 | uint64(len(pcs))<<8 | stackThere
	mem, places := m.area.Bytes, 1
	if flags&StackNear != 0 {
		places = stackWindow
	}
	for try := range hashTries {
		yieldProcessor(try)
		at := slotWord(id)
		have := load64(mem, at)
		switch {
		case have == stackWriting:
			continue
		case have != stackNone && have>>32 == word>>32 && (flags&stackFast != 0 || have == word && m.stackIs(id, pcs)):
			return id, 0
		case have != stackNone && flags&stackReuse == 0:
			if places--; places == 0 {
				return 0, errExist
			}
			id = (id + 1) & (m.entries - 1)
			continue
		}
		if !cas64(mem, at, have, stackWriting) {
			continue
		}
		v := m.valueAt(id, 0)
		copyShared(v, m.zero[:len(v)])
		copyShared(v[:len(stack)], stack)
		store64(mem, at, word)
		return id, 0
	}
	return 0, errBusy
}

// putStack puts a stack in the place that it had in another map of the same size.
func (m *Map) putStack(id int, stack []byte) int {
	n := len(stack) / 8
	for n > 0 && binary.LittleEndian.Uint64(stack[8*n-8:]) == 0 {
		n--
	}
	if id >= m.entries || n == 0 {
		return errInval
	}
	v := m.valueAt(id, 0)
	copyShared(v, m.zero[:len(v)])
	copyShared(v[:8*n], stack)
	store64(m.area.Bytes, slotWord(id), uint64(hashOf(stack[:8*n]))<<32|uint64(n)<<8|stackThere)
	return 0
}

// stackIs reports whether a stack has these addresses.
func (m *Map) stackIs(id int, pcs []uint64) bool {
	at := m.values + id*m.stride
	for i, pc := range pcs {
		if load64(m.area.Bytes, at+8*i) != pc {
			return false
		}
	}
	return true
}

// dropStack removes a stack.
func (m *Map) dropStack(key []byte) int {
	id, ok := m.find(key)
	if !ok {
		return errNoEnt
	}
	at := slotWord(id)
	if have := load64(m.area.Bytes, at); have > stackWriting && cas64(m.area.Bytes, at, have, stackNone) {
		return 0
	}
	return errBusy
}
