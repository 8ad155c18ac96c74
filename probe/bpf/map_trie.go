package bpf

import (
	"encoding/binary"
	"sync"
)

// An LPM trie has keys of a length in bits (4 bytes, in the host's byte order) and that
// many bits of data. A lookup finds the longest key that is a prefix of the one it looks
// for. Here it is a table of slots in the map's memory, and an index of them by length
// and bits, which only the host has.
const (
	triePrefix  = 4   // bytes of a key before its data
	trieMaxData = 256 // LPM_DATA_SIZE_MAX
)

type trie struct {
	mu    sync.RWMutex   // held briefly
	at    map[string]int // slot of a key, with its bits after the length zeroed
	count [8*trieMaxData + 1]int
	free  []int    // slots, the next one last
	used  []bool   // by slot
	keys  []string // by slot
}

func newTrie(entries int) *trie {
	t := &trie{at: map[string]int{}, used: make([]bool, entries), keys: make([]string, entries)}
	for i := range entries {
		t.free = append(t.free, entries-1-i)
	}
	return t
}

// trieKey returns a key with only its first bits bits.
func trieKey(to, key []byte, bits int) []byte {
	to = to[:len(key)]
	copy(to, key)
	binary.LittleEndian.PutUint32(to, uint32(bits))
	data := to[triePrefix:]
	full := bits / 8
	if full < len(data) {
		data[full] &= ^(byte(0xff) >> (bits % 8))
		clear(data[full+1:])
	}
	return to
}

// trieBits returns the length of a key in bits; ok is false if it is more than the key
// has.
func trieBits(key []byte) (bits int, ok bool) {
	n := binary.LittleEndian.Uint32(key)
	return int(n), n <= uint32(8*(len(key)-triePrefix))
}

// find returns the slot of the longest prefix of key.
func (t *trie) find(key []byte) (int, bool) {
	bits, ok := trieBits(key)
	if !ok {
		return 0, false
	}
	var buf [triePrefix + trieMaxData]byte
	t.mu.RLock()
	defer t.mu.RUnlock()
	for ; bits >= 0; bits-- {
		if t.count[bits] == 0 {
			continue
		}
		if slot, ok := t.at[string(trieKey(buf[:], key, bits))]; ok {
			return slot, true
		}
	}
	return 0, false
}

// update is Map.update of the trie's map.
func (t *trie) update(m *Map, key, val []byte, flags uint64) int {
	bits, ok := trieBits(key)
	if flags > UpdateExist || !ok {
		return errInval
	}
	var buf [triePrefix + trieMaxData]byte
	own := trieKey(buf[:], key, bits)
	t.mu.Lock()
	defer t.mu.Unlock()
	slot, have := t.at[string(own)]
	switch {
	case have && flags == UpdateNoExist:
		return errExist
	case !have && flags == UpdateExist:
		return errNoEnt
	case !have && len(t.free) == 0:
		return errNoSpace
	case !have:
		slot = t.free[len(t.free)-1]
		t.free = t.free[:len(t.free)-1]
		t.keys[slot] = string(own)
		t.at[t.keys[slot]], t.used[slot] = slot, true
		t.count[bits]++
	}
	m.write(slot, val, 0)
	return 0
}

// remove is Map.remove of the trie's map.
func (t *trie) remove(key []byte) int {
	bits, ok := trieBits(key)
	if !ok {
		return errInval
	}
	var buf [triePrefix + trieMaxData]byte
	t.mu.Lock()
	defer t.mu.Unlock()
	slot, have := t.at[string(trieKey(buf[:], key, bits))]
	if !have {
		return errNoEnt
	}
	delete(t.at, t.keys[slot])
	t.used[slot] = false
	t.count[bits]--
	t.free = append(t.free, slot)
	return 0
}

// read copies the key and the value in a slot of the trie's map; it returns false if the slot is free.
func (t *trie) read(m *Map, slot int, key []byte, vals [][]byte) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.used[slot] {
		return false
	}
	copy(key, t.keys[slot])
	if vals != nil {
		m.readValues(slot, vals)
	}
	return true
}
