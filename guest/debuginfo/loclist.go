package debuginfo

import (
	"debug/dwarf"

	"github.com/guestprobe/guestprobe/guest/dies"
)

// Entries of location lists (DWARF 5, 7.7.3).
const (
	lleEnd = iota
	lleBaseAddressx
	lleStartxEndx
	lleStartxLength
	lleOffsetPair
	lleDefault
	lleBaseAddress
	lleStartEnd
	lleStartLength
	lleViewPair // of GNU: it does not affect addresses
)

// maxList bounds the entries of one list that are read.
const maxList = 1 << 16

// lists are the location lists of a unit.
type lists struct {
	b       []byte // .debug_loclists, or before DWARF 5 .debug_loc
	base    uint64 // base of list indexes
	low     uint64 // base of addresses
	version uint16
	split   bool // in a file of split debug information
	wide    bool // offsets have 8 bytes
	address func(uint64) (uint64, error)
}

func listsOf(u *dies.Unit) lists {
	b, base := u.Locations()
	return lists{b, base, u.Low, u.Version, u.IsSplit(), u.Wide(), u.Address}
}

// expression returns an attribute's location description for addr, which is empty if
// it has none.
func (l lists) expression(f *dwarf.Field, addr uint64) ([]byte, error) {
	switch v := f.Val.(type) {
	case []byte:
		return v, nil
	case int64:
		switch {
		case l.version >= 5:
			return l.find(uint64(v), addr)
		case l.split:
			return l.findOldSplit(uint64(v), addr)
		}
		return l.findOld(v, addr)
	case uint64: // an index (DW_FORM_loclistx)
		size := uint64(4)
		if l.wide {
			size = 8
		}
		if l.base > uint64(len(l.b)) || v > uint64(len(l.b))/size {
			return nil, errDamaged
		}
		x := expression{code: l.b[l.base:]}
		x.take(v * size)
		at := uint64(x.readFixed(int(size), false))
		if x.err != nil {
			return nil, x.err
		}
		return l.find(l.base+at, addr)
	}
	return nil, errDamaged
}

// find searches a list of .debug_loclists.
func (l lists) find(at, addr uint64) ([]byte, error) {
	if at > uint64(len(l.b)) {
		return nil, errDamaged
	}
	x := expression{code: l.b[at:]}
	base := l.low
	indexed := func() uint64 {
		v, err := l.address(x.uleb())
		if err != nil && x.err == nil {
			x.err = err
		}
		return v
	}
	var otherwise []byte
	for n := 0; n < maxList && x.err == nil; n++ {
		var lo, hi uint64
		switch kind := x.readFixed(1, false); kind {
		case lleEnd:
			return otherwise, x.err
		case lleBaseAddressx:
			base = indexed()
			continue
		case lleBaseAddress:
			base = uint64(x.readFixed(8, false))
			continue
		case lleViewPair:
			x.uleb()
			x.uleb()
			continue
		case lleDefault:
			otherwise = x.block()
			continue
		case lleStartxEndx:
			lo, hi = indexed(), indexed()
		case lleStartxLength:
			lo = indexed()
			hi = lo + x.uleb()
		case lleOffsetPair:
			lo = base + x.uleb()
			hi = base + x.uleb()
		case lleStartEnd:
			lo, hi = uint64(x.readFixed(8, false)), uint64(x.readFixed(8, false))
		case lleStartLength:
			lo = uint64(x.readFixed(8, false))
			hi = lo + x.uleb()
		default:
			return nil, errDamaged
		}
		if b := x.block(); lo <= addr && addr < hi && x.err == nil {
			return b, nil
		}
	}
	return nil, errDamaged
}

// findOld searches a list of .debug_loc (DWARF 4, 2.6.2).
func (l lists) findOld(at int64, addr uint64) ([]byte, error) {
	if at < 0 || at > int64(len(l.b)) {
		return nil, errDamaged
	}
	x := expression{code: l.b[at:]}
	base := l.low
	for n := 0; n < maxList && x.err == nil; n++ {
		lo, hi := uint64(x.readFixed(8, false)), uint64(x.readFixed(8, false))
		switch {
		case lo == 0 && hi == 0:
			return nil, x.err
		case lo == 1<<64-1:
			base = hi
			continue
		}
		b := x.take(uint64(x.readFixed(2, false)))
		if base+lo <= addr && addr < base+hi && x.err == nil {
			return b, nil
		}
	}
	return nil, errDamaged
}

// Entries of lists in split debug information before DWARF 5, in GNU's version.
const (
	lleGNUEnd = iota
	lleGNUBaseAddress
	lleGNUStartEnd
	lleGNUStartLength
)

// findOldSplit searches a list of .debug_loc.dwo.
func (l lists) findOldSplit(at, addr uint64) ([]byte, error) {
	if at > uint64(len(l.b)) {
		return nil, errDamaged
	}
	x := expression{code: l.b[at:]}
	indexed := func() uint64 {
		v, err := l.address(x.uleb())
		if err != nil && x.err == nil {
			x.err = err
		}
		return v
	}
	for n := 0; n < maxList && x.err == nil; n++ {
		var lo, hi uint64
		switch x.readFixed(1, false) {
		case lleGNUEnd:
			return nil, x.err
		case lleGNUBaseAddress:
			indexed()
			continue
		case lleGNUStartEnd:
			lo, hi = indexed(), indexed()
		case lleGNUStartLength:
			lo = indexed()
			hi = lo + uint64(x.readFixed(4, false))
		default:
			return nil, errDamaged
		}
		if b := x.take(uint64(x.readFixed(2, false))); lo <= addr && addr < hi && x.err == nil {
			return b, nil
		}
	}
	return nil, errDamaged
}
