package bpf

import (
	"encoding/binary"
	"sync/atomic"
)

// An LPM trie has keys of a length in bits (4 bytes, in the host's byte order) and that
// many bits of data. A lookup finds the longest key that is a prefix of the one it looks
// for. Here it is a hash of keys whose other bits are zero, in which each length that
// some key has is looked up, the longest first. So it has no lock, as other hashes.
const (
	triePrefix  = 4   // bytes of a key before its data
	trieMaxData = 256 // LPM_DATA_SIZE_MAX
)

// trie has the numbers of keys by length: at least the number of those that are in the
// hash. Only the host has it.
type trie struct {
	m     *Map
	count [8*trieMaxData + 1]atomic.Int32
}

// trieBuffer has room for a key.
type trieBuffer [triePrefix + trieMaxData]byte

// shorten returns a key with only its first bits bits.
func (b *trieBuffer) shorten(key []byte, bits int) []byte {
	to := b[:len(key)]
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
	var b trieBuffer
	for ; bits >= 0; bits-- {
		if t.count[bits].Load() == 0 {
			continue
		}
		if slot, ok := t.m.hashFind(b.shorten(key, bits)); ok {
			return slot, true
		}
	}
	return 0, false
}

// update is Map.update.
func (t *trie) update(key, val []byte, flags uint64) int {
	bits, ok := trieBits(key)
	if flags > UpdateExist || !ok {
		return errInval
	}
	var b trieBuffer
	own := b.shorten(key, bits)
	for range hashTries {
		if flags != UpdateNoExist {
			if e := t.m.hashUpdate(own, val, UpdateExist, 0); e != errNoEnt || flags == UpdateExist {
				return e
			}
		}
		t.count[bits].Add(1) // before others can find it
		e := t.m.hashUpdate(own, val, UpdateNoExist, 0)
		if e == 0 {
			return 0
		}
		t.count[bits].Add(-1)
		switch {
		case e == errTooBig:
			return errNoSpace
		case e != errExist || flags == UpdateNoExist:
			return e
		}
	}
	return errBusy
}

// remove is Map.remove.
func (t *trie) remove(key []byte) int {
	bits, ok := trieBits(key)
	if !ok {
		return errInval
	}
	var b trieBuffer
	e := t.m.hashDelete(b.shorten(key, bits))
	if e == 0 {
		t.count[bits].Add(-1)
	}
	return e
}
