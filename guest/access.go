package guest

import "encoding/binary"

// access says how a transfer uses the pages it crosses.
type access uint8

const (
	accessRead access = iota
	accessWrite
	accessPoke  // write even where the guest itself may not
	accessCheck // whether accessWrite would succeed
)

// Read fills p with the guest's bytes at va, across pages. On error, which is a
// *PageFaultError for the first byte that has no memory, p holds the bytes before it.
// Bytes that a running guest writes during the call may be torn; Uint64 is never
// torn.
func (as AddressSpace) Read(va GVA, p []byte) error { return as.transfer(va, p, accessRead) }

// Write copies p to guest memory at va, across pages, if the tables let the guest
// write there. It checks every page before it changes the first byte, and notes in the
// tables that the page was written, as the processor does: a kernel may drop
// a page that it takes for unchanged. Errors are *PageFaultError.
func (as AddressSpace) Write(va GVA, p []byte) error { return as.write(va, p, accessWrite) }

// Poke is Write without regard to the pages' write permission: for memory of ours
// that is read-only for the guest, such as the exec areas. The guest's text is
// changed by Text.Patch only.
func (as AddressSpace) Poke(va GVA, p []byte) error { return as.write(va, p, accessPoke) }

// write transfers p, after a dry run over its pages if there are several: a push that
// crosses into an unmapped page must not change the first page, as on the processor
// (SDM Vol. 3, 6.5, "faults").
func (as AddressSpace) write(va GVA, p []byte, a access) error {
	if uint64(len(p)) > page4K-uint64(va)&(page4K-1) {
		check := a
		if a == accessWrite {
			check = accessCheck
		}
		for done := uint64(0); done < uint64(len(p)); {
			b, err := as.host(va+GVA(done), uint64(len(p))-done, check)
			if err != nil {
				return err
			}
			done += uint64(len(b))
		}
	}
	return as.transfer(va, p, a)
}

func (as AddressSpace) transfer(va GVA, p []byte, a access) error {
	for len(p) > 0 {
		b, err := as.host(va, uint64(len(p)), a)
		if err != nil {
			return err
		}
		if a == accessRead {
			copy(p, b)
		} else {
			copy(b, p)
		}
		p = p[len(b):]
		va += GVA(len(b)) // wraps only after the last canonical page
	}
	return nil
}

// host returns the host bytes of at most n bytes at va, as far as they lie in
// one page and one region.
func (as AddressSpace) host(va GVA, n uint64, a access) ([]byte, error) {
	regions := as.mem.Regions()
	if pa, ok := as.pins.pageAt(va); ok && a != accessWrite {
		if b := hostBytes(regions, pa, min(n, page4K-uint64(va)&(page4K-1))); b != nil {
			return b, nil
		}
	}
	var m Mapping
	var level int
	var reason FaultReason
	switch a {
	case accessWrite:
		m, level, reason = as.walkToWrite(regions, va)
	case accessCheck:
		if m, level, reason = as.walk(regions, va, nil); reason == 0 && !m.Writable {
			reason = FaultNotWritable
		}
	default:
		m, level, reason = as.walk(regions, va, nil)
	}
	if reason != 0 {
		return nil, &PageFaultError{VA: va, Level: level, Reason: reason}
	}
	// In steps of 4 KiB even in a large page: a region may end inside one.
	n = min(n, page4K-uint64(va)&(page4K-1))
	b := hostBytes(regions, m.PA, n)
	if b == nil {
		return nil, &PageFaultError{VA: va, Reason: FaultNoMemory}
	}
	return b, nil
}

// walkToWrite is walk for a write by the guest's rights: it sets the accessed and the dirty bit of the entry that maps
// the page (SDM Vol. 3, 4.8). The guest may change the entry before that; the next round sees the new one. For an entry that
// never stays the same the reason is FaultNotPresent.
func (as AddressSpace) walkToWrite(regions []Region, va GVA) (m Mapping, level int, reason FaultReason) {
	for range 1000 {
		var t trail
		if m, level, reason = as.walk(regions, va, &t); reason != 0 {
			return m, level, reason
		}
		if !m.Writable {
			return m, level, FaultNotWritable
		}
		if t.n == 0 {
			return m, level, 0 // a fixed address
		}
		const set = pteAccessed | pteDirty
		leaf := t.steps[t.n-1]
		if leaf.Entry&set == set || swapWord(regions, leaf.At, leaf.Entry, leaf.Entry|set) {
			return m, level, 0
		}
	}
	return Mapping{}, level, FaultNotPresent
}

// Uint64 reads the little-endian value at va. If va is a multiple of 8 it is a value
// that the guest stored, even while the guest runs.
func (as AddressSpace) Uint64(va GVA) (uint64, error) {
	if va%8 != 0 {
		var b [8]byte
		err := as.Read(va, b[:])
		return le64(b[:]), err
	}
	regions := as.mem.Regions()
	m, level, reason := as.walk(regions, va, nil)
	if reason == 0 {
		if v, ok := loadWord(regions, m.PA); ok {
			return v, nil
		}
		level, reason = 0, FaultNoMemory
	}
	return 0, &PageFaultError{VA: va, Level: level, Reason: reason}
}

// setUint64 writes v at va like Write. If va is a multiple of 8, a running guest sees
// either the old value or the new one, and once it sees the new one, everything that
// this thread wrote before.
func (as AddressSpace) setUint64(va GVA, v uint64) error {
	if va%8 != 0 {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], v)
		return as.Write(va, b[:])
	}
	regions := as.mem.Regions()
	m, level, reason := as.walkToWrite(regions, va)
	switch {
	case reason != 0:
	case !storeWord(regions, m.PA, v):
		level, reason = 0, FaultNoMemory
	default:
		return nil
	}
	return &PageFaultError{VA: va, Level: level, Reason: reason}
}
