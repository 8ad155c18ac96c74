package dies

import (
	"debug/dwarf"
	"fmt"
)

// maxRanges bounds the ranges of one entry.
const maxRanges = 1 << 20

// Kinds of entries of .debug_rnglists (DWARF 5, 7.25).
const (
	rleEnd = iota
	rleBaseAddressx
	rleStartxEndx
	rleStartxLength
	rleOffsetPair
	rleBaseAddress
	rleStartEnd
	rleStartLength
)

// Ranges returns the code of an entry, as pairs of the first address and the one after the last.
func (d *Data) Ranges(e *dwarf.Entry) ([][2]uint64, error) {
	u := d.UnitOf(e.Offset)
	if u == nil {
		return nil, errDamaged
	}
	return u.ranges(e)
}

// Ranges returns the code of the unit.
func (u *Unit) Ranges() ([][2]uint64, error) {
	if u.skeleton != nil {
		return u.skeleton.Ranges()
	}
	return u.ranges(u.Entry)
}

func (u *Unit) ranges(e *dwarf.Entry) (out [][2]uint64, err error) {
	if low, ok := e.Val(dwarf.AttrLowpc).(uint64); ok {
		switch high := e.Val(dwarf.AttrHighpc).(type) {
		case uint64:
			out = append(out, [2]uint64{low, high})
		case int64:
			out = append(out, [2]uint64{low, low + uint64(high)})
		}
	}
	switch index := e.Val(dwarf.AttrRanges).(type) {
	case uint64: // an index of a list
		b, base := u.sec.rnglists, u.rngBase
		size := wordSize(u.wide)
		if index > uint64(len(b))/size || base > uint64(len(b)) {
			return nil, fmt.Errorf("%w: list %d is not in .debug_rnglists", errDamaged, index)
		}
		c := cursorAt(b, base+index*size)
		off := c.word(u.wide)
		if c.bad || off > uint64(len(b)) {
			return nil, fmt.Errorf("%w: list %d is not in .debug_rnglists", errDamaged, index)
		}
		return u.rnglist(out, base+off)
	case int64:
		switch {
		case u.Version >= 5:
			return u.rnglist(out, uint64(index))
		case u.sec.split && u.skeleton != nil:
			return u.oldRanges(out, u.data.main.ranges, uint64(index)+u.rangesBase)
		}
		return u.oldRanges(out, u.sec.ranges, uint64(index))
	}
	return out, nil
}

// rnglist reads a list of .debug_rnglists.
func (u *Unit) rnglist(out [][2]uint64, off uint64) ([][2]uint64, error) {
	c := cursorAt(u.sec.rnglists, off)
	base := u.Low
	var err error
	indexed := func() uint64 {
		v, bad := u.Address(c.uleb())
		if bad != nil {
			err = bad
		}
		return v
	}
	for n := 0; !c.bad && err == nil && n < maxRanges; n++ {
		var lo, hi uint64
		switch c.u8() {
		case rleEnd:
			return out, nil
		case rleBaseAddressx:
			base = indexed()
			continue
		case rleBaseAddress:
			base = u.addr(c)
			continue
		case rleStartxEndx:
			lo = indexed()
			hi = indexed()
		case rleStartxLength:
			lo = indexed()
			hi = lo + c.uleb()
		case rleOffsetPair:
			lo = base + c.uleb()
			hi = base + c.uleb()
		case rleStartEnd:
			lo = u.addr(c)
			hi = u.addr(c)
		case rleStartLength:
			lo = u.addr(c)
			hi = lo + c.uleb()
		default:
			return nil, fmt.Errorf("%w: a list of ranges at %#x", errDamaged, off)
		}
		out = append(out, [2]uint64{lo, hi})
	}
	if err == nil {
		err = fmt.Errorf("%w: a list of ranges at %#x does not end", errDamaged, off)
	}
	return nil, err
}

func (u *Unit) addr(c *cursor) uint64 {
	if u.addrSize == 4 {
		return c.u32()
	}
	return c.u64()
}

// oldRanges reads a list of .debug_ranges (DWARF 4, 2.17.3).
func (u *Unit) oldRanges(out [][2]uint64, b []byte, off uint64) ([][2]uint64, error) {
	c := cursorAt(b, off)
	base, highest := u.Low, ^uint64(0)
	if u.addrSize == 4 {
		highest = 0xffffffff
	}
	for range maxRanges {
		lo, hi := u.addr(c), u.addr(c)
		switch {
		case c.bad:
			return nil, fmt.Errorf("%w: a list of ranges at %#x does not end", errDamaged, off)
		case lo == 0 && hi == 0:
			return out, nil
		case lo == highest:
			base = hi
		default:
			out = append(out, [2]uint64{base + lo, base + hi})
		}
	}
	return nil, fmt.Errorf("%w: a list of ranges at %#x does not end", errDamaged, off)
}

// LineReader reads the unit's line numbers; nil if it has none.
func (u *Unit) LineReader() (*dwarf.LineReader, error) {
	sec, e := u.sec, u.Entry
	if u.skeleton != nil {
		sec, e = u.skeleton.sec, u.skeleton.Entry
	}
	if len(sec.line) == 0 {
		return nil, nil
	}
	if sec.lines == nil {
		// debug/dwarf requires a unit to learn the format: an empty one of DWARF 5.
		info := []byte{9, 0, 0, 0, 5, 0, utCompile, u.addrSize, 0, 0, 0, 0, 0}
		d, err := dwarf.New([]byte{0}, nil, nil, info, sec.line, nil, nil, sec.str)
		if err != nil {
			return nil, fmt.Errorf("read line numbers: %w", err)
		}
		if err := d.AddSection(".debug_line_str", sec.lineStr); err != nil {
			return nil, fmt.Errorf("read line numbers: %w", err)
		}
		sec.lines = d
	}
	of := &dwarf.Entry{Offset: 12, Tag: dwarf.TagCompileUnit}
	for _, a := range []dwarf.Attr{dwarf.AttrStmtList, dwarf.AttrCompDir} {
		if f := e.AttrField(a); f != nil {
			of.Field = append(of.Field, *f)
		}
	}
	return sec.lines.LineReader(of)
}
