package debuginfo

import (
	"debug/dwarf"
	"encoding/binary"
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
	lleViewPair // of GNU: it says nothing about addresses
)

// maxList is how many entries of one list are read.
const maxList = 1 << 16

// expressionOf returns the location description that an attribute has for addr, which is
// empty where it has none.
func (i *Info) expressionOf(u *unit, f *dwarf.Field, addr uint64) ([]byte, error) {
	switch v := f.Val.(type) {
	case []byte:
		return v, nil
	case int64:
		if u.version < 5 {
			return i.inLocations(u, v, addr)
		}
		return i.inList(u, uint64(v), addr)
	case uint64: // an index (DW_FORM_loclistx)
		base, ok := u.entry.Val(dwarf.AttrLoclistsBase).(int64)
		size := uint64(4 * (1 + int64(u.wide)))
		if !ok || base < 0 || uint64(base) > uint64(len(i.lists)) || v > uint64(len(i.lists))/size {
			return nil, errDamaged
		}
		x := expression{code: i.lists[base:]}
		x.take(v * size)
		at := uint64(x.fixed(int(size), false))
		if x.err != nil {
			return nil, x.err
		}
		return i.inList(u, uint64(base)+at, addr)
	}
	return nil, errDamaged
}

// inList looks into a list of .debug_loclists.
func (i *Info) inList(u *unit, at, addr uint64) ([]byte, error) {
	if at > uint64(len(i.lists)) {
		return nil, errDamaged
	}
	x := expression{code: i.lists[at:]}
	base := u.low
	indexed := func() uint64 {
		v, err := i.address(u, x.uleb())
		if err != nil && x.err == nil {
			x.err = err
		}
		return v
	}
	var otherwise []byte
	for n := 0; n < maxList && x.err == nil; n++ {
		var lo, hi uint64
		switch kind := x.fixed(1, false); kind {
		case lleEnd:
			return otherwise, x.err
		case lleBaseAddressx:
			base = indexed()
			continue
		case lleBaseAddress:
			base = uint64(x.fixed(8, false))
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
			lo, hi = uint64(x.fixed(8, false)), uint64(x.fixed(8, false))
		case lleStartLength:
			lo = uint64(x.fixed(8, false))
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

// inLocations looks into a list of .debug_loc (DWARF 4, 2.6.2).
func (i *Info) inLocations(u *unit, at int64, addr uint64) ([]byte, error) {
	if at < 0 || at > int64(len(i.locations)) {
		return nil, errDamaged
	}
	x := expression{code: i.locations[at:]}
	base := u.low
	for n := 0; n < maxList && x.err == nil; n++ {
		lo, hi := uint64(x.fixed(8, false)), uint64(x.fixed(8, false))
		switch {
		case lo == 0 && hi == 0:
			return nil, x.err
		case lo == 1<<64-1:
			base = hi
			continue
		}
		b := x.take(uint64(x.fixed(2, false)))
		if base+lo <= addr && addr < base+hi && x.err == nil {
			return b, nil
		}
	}
	return nil, errDamaged
}

// address returns an address of .debug_addr by its number.
func (i *Info) address(u *unit, n uint64) (uint64, error) {
	base, ok := u.entry.Val(dwarf.AttrAddrBase).(int64)
	if !ok || base < 0 || uint64(base) > uint64(len(i.addrs)) || n >= (uint64(len(i.addrs))-uint64(base))/8 {
		return 0, errDamaged
	}
	return binary.LittleEndian.Uint64(i.addrs[uint64(base)+8*n:]), nil
}
