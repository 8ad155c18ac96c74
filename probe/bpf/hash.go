package bpf

import (
	"encoding/binary"
	"syscall"
)

// A hash map is a table of slots, each with a state word, a key and a value for each
// copy. A key can only be in the window of hashWindow slots that begins at the place
// of its hash; a lookup walks the window up to the first slot that was never used.
// There is no lock. A writer claims a slot by compare and swap of its state word.
// Code that meets a claimed slot of the same hash retries a bounded number of times
// and then fails with EBUSY. So a vCPU that was stopped half way, or an interrupt
// that hit the same probe, stalls no other code. Compiled programs follow the same
// protocol with the same words.
//
// A state word:
//
//	63        32 31       3 2   0
//	+-----------+----------+-----+
//	| hash      | version  |state|
//	+-----------+----------+-----+
//
// The version changes with every claim, so an unchanged live word means that the key
// in the slot is unchanged too.
const (
	slotEmpty    = 0 // never used
	slotClaimed  = 1 // key and value are being written
	slotLive     = 2
	slotUpdating = 3 // live, and its value is being written
	slotGone     = 4 // free again

	slotState   = 7
	slotVersion = 1 << 3
	slotVerMask = 1<<32 - slotVersion

	hashWindow = 32
	hashSpins  = 16      // tries, on the host, before yielding the processor
	hashLooks  = 64      // tries to read an element
	hashTries  = 1 << 10 // tries of an operation on the host that conflicts with another one
	guestTries = 1 << 20 // the same in the guest
	hashMul    = 0x9e3779b97f4a7c15
)

// hashGeometry has the places of the parts of a hash map.
type hashGeometry struct {
	mask    uint32 // slots - 1
	keys    int    // offset of the keys; the state words follow the header
	keySize int
	part    int // bytes of a key, from its beginning, that no two keys share
	stride  int // of keys, a multiple of 8
}

// planHash places the parts: at least twice as many slots as entries, so that
// full windows are rare.
func (m *Map) planHash() {
	n := max(nextPow2(2*m.entries), 2*hashWindow)
	m.hash = hashGeometry{mask: uint32(n - 1), keys: mapHeader + 8*n, keySize: int(m.spec.KeySize), part: int(m.spec.KeySize), stride: roundUp(int(m.spec.KeySize), 8)}
	if m.spec.Kind == TaskStorage {
		m.hash.part = storageKeyPart
	}
	m.entries = n
	m.values = roundUp(m.hash.keys+n*m.hash.stride, 64)
}

// hashOf mixes a key, 8 bytes at a time, the last ones padded with zeros.
func hashOf(key []byte) uint32 {
	h := uint64(len(key)) * hashMul
	for ; len(key) >= 8; key = key[8:] {
		h = hashStep(h, binary.LittleEndian.Uint64(key))
	}
	if len(key) > 0 {
		h = hashStep(h, partWord(key))
	}
	return uint32(h * hashMul >> 32) // once more, for the high bits of the last chunk
}

func hashStep(h, chunk uint64) uint64 {
	h = (h ^ chunk) * hashMul
	return h ^ h>>32
}

func slotWord(slot int) int { return mapHeader + 8*slot }

func (m *Map) keyAt(slot int) []byte {
	at := m.hash.keys + slot*m.hash.stride
	return m.area.Bytes[at : at+m.hash.keySize]
}

// keyEqual compares the key in slot with key. Whole words are read, but the bytes
// after the key in the last word are ignored: a hostile guest may have written them.
func (m *Map) keyEqual(slot int, key []byte) bool {
	at := m.hash.keys + slot*m.hash.stride
	for ; len(key) >= 8; key = key[8:] {
		if load64(m.area.Bytes, at) != binary.LittleEndian.Uint64(key) {
			return false
		}
		at += 8
	}
	if len(key) == 0 {
		return true
	}
	return load64(m.area.Bytes, at)&(1<<(8*len(key))-1) == partWord(key)
}

// partWord returns up to 8 bytes as a word, padded with zeros.
func partWord(b []byte) (w uint64) {
	for i, c := range b {
		w |= uint64(c) << (8 * i)
	}
	return w
}

// scan is the result of a walk over a key's window.
type scan struct {
	slot int    // where the key is, or -1
	word uint64 // its state word
	free int    // first slot that can be claimed, or -1
	was  uint64 // its state word
	pos  int    // its place in the window
	busy bool   // a slot of the same hash is claimed: the key may be about to appear
}

// hashScan walks the window of h.
func (m *Map) hashScan(key []byte, h uint32) scan {
	r := scan{slot: -1, free: -1}
	mem := m.area.Bytes
	for pos := range hashWindow {
		slot := int((h + uint32(pos)) & m.hash.mask)
		w := load64(mem, slotWord(slot))
		switch w & slotState {
		case slotLive, slotUpdating:
			if uint32(w>>32) != h || !m.keyEqual(slot, key) {
				continue
			}
			if now := load64(mem, slotWord(slot)); (now^w)&^slotState != 0 || now&slotState != slotLive && now&slotState != slotUpdating {
				r.busy = true // the slot changed hands during the scan
				continue
			}
			r.slot, r.word = slot, w
			return r
		case slotClaimed:
			if uint32(w>>32) == h {
				r.busy = true
			}
		case slotEmpty:
			if r.free < 0 {
				r.free, r.was, r.pos = slot, w, pos
			}
			return r
		case slotGone:
			if r.free < 0 {
				r.free, r.was, r.pos = slot, w, pos
			}
		}
	}
	return r
}

// yieldProcessor is called before a try: the conflicting operation may be on a thread
// that does not run, because the host has more threads than processors, and then
// retrying alone cannot succeed.
func yieldProcessor(try int) {
	if try >= hashSpins {
		_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// hashFind returns the slot of key.
func (m *Map) hashFind(key []byte) (int, bool) {
	part := key[:m.hash.part]
	r := m.hashScan(part, hashOf(part))
	return r.slot, r.slot >= 0
}

// hashUpdate is update for hashes.
func (m *Map) hashUpdate(key, val []byte, flags uint64, cpu int) int {
	if flags > UpdateExist {
		return errInval
	}
	part := key[:m.hash.part]
	h, mem := hashOf(part), m.area.Bytes
	for try := range hashTries {
		yieldProcessor(try)
		r := m.hashScan(part, h)
		switch {
		case r.slot >= 0 && flags == UpdateNoExist:
			return errExist
		case r.slot >= 0:
			at := slotWord(r.slot)
			if r.word&slotState != slotLive || !cas64(mem, at, r.word, r.word^slotLive^slotUpdating) {
				continue
			}
			m.write(r.slot, val, cpu)
			m.noteUse(r.slot)
			store64(mem, at, r.word)
			return 0
		case r.busy:
			continue
		case flags == UpdateExist:
			return errNoEnt
		case r.free < 0:
			if !m.evict(int(h), hashWindow) {
				return errTooBig
			}
			continue
		}
		if add64(mem, hdrCount, 1) > uint64(m.spec.MaxEntries) {
			add64(mem, hdrCount, ^uint64(0))
			if !m.evict(int(add64(mem, hdrHand, lruSample)), lruSample) {
				return errTooBig
			}
			continue
		}
		word := uint64(h)<<32 | (r.was+slotVersion)&slotVerMask | slotClaimed
		at := slotWord(r.free)
		if !cas64(mem, at, r.was, word) {
			add64(mem, hdrCount, ^uint64(0))
			continue
		}
		copyShared(m.keyAt(r.free), key)
		errno := m.hashRival(part, h, r.pos)
		if errno != 0 {
			store64(mem, at, word^slotClaimed^slotGone)
			add64(mem, hdrCount, ^uint64(0))
			if errno == errAgain {
				continue
			}
			return errno
		}
		if m.perCPU && cpu >= 0 {
			for c := range m.cpus {
				copyShared(m.valueAt(r.free, c), m.zero)
			}
		}
		m.write(r.free, val, cpu)
		m.noteUse(r.free)
		store64(mem, at, word^slotClaimed^slotLive)
		return 0
	}
	return errBusy
}

// hashRival looks for another claim of the same key after ours, at mine in the
// window, was made. Both sides claim first and look second, so at least one sees the
// other; the one further up in the window continues, the other yields. It returns 0
// to continue, errAgain to yield, errBusy if the other one makes no progress.
func (m *Map) hashRival(key []byte, h uint32, mine int) int {
	mem := m.area.Bytes
	for pos := range hashWindow {
		if pos == mine {
			continue
		}
		slot := int((h + uint32(pos)) & m.hash.mask)
		for spin := 0; ; spin++ {
			w := load64(mem, slotWord(slot))
			state := w & slotState
			if state == slotEmpty {
				return 0
			}
			if uint32(w>>32) != h {
				break
			}
			if state == slotClaimed {
				if pos < mine {
					return errAgain
				}
				if spin == hashTries {
					return errBusy
				}
				yieldProcessor(spin)
				continue
			}
			if (state == slotLive || state == slotUpdating) && m.keyEqual(slot, key) {
				return errAgain
			}
			break
		}
	}
	return 0
}

// hashDelete is remove for hashes.
func (m *Map) hashDelete(key []byte) int {
	part := key[:m.hash.part]
	h, mem := hashOf(part), m.area.Bytes
	for try := range hashTries {
		yieldProcessor(try)
		r := m.hashScan(part, h)
		if r.slot < 0 {
			if r.busy {
				continue
			}
			return errNoEnt
		}
		if r.word&slotState == slotLive && cas64(mem, slotWord(r.slot), r.word, r.word^slotLive^slotGone) {
			add64(mem, hdrCount, ^uint64(0))
			return 0
		}
	}
	return errBusy
}

// hashRead copies the element in slot, if there is one and it is stable.
func (m *Map) hashRead(slot int, key []byte, vals [][]byte) bool {
	for try := range hashLooks {
		yieldProcessor(try)
		w := load64(m.area.Bytes, slotWord(slot))
		switch w & slotState {
		case slotLive:
			readShared(key, m.keyAt(slot))
			m.readValues(slot, vals)
			if load64(m.area.Bytes, slotWord(slot)) == w {
				return true
			}
		case slotUpdating:
		default:
			return false
		}
	}
	return false
}
