package dies

import (
	"debug/dwarf"
	"fmt"
)

// Kind is the kind of a unit.
type Kind uint8

// The kinds.
const (
	Compile Kind = iota // it has code
	Partial             // other units import it
	Type                // it has one type
)

// Types of units (DWARF 5, 7.5.1).
const (
	utCompile = iota + 1
	utType
	utPartial
	utSkeleton
	utSplitCompile
	utSplitType
)

// GNU's attributes for split debug information before DWARF 5.
const (
	attrGNUDwoName    dwarf.Attr = 0x2130
	attrGNUDwoID      dwarf.Attr = 0x2131
	attrGNURangesBase dwarf.Attr = 0x2132
	attrGNUAddrBase   dwarf.Attr = 0x2133
)

// tagSkeleton is DW_TAG_skeleton_unit.
const tagSkeleton = dwarf.Tag(0x4a)

// Unit is one unit of entries.
type Unit struct {
	Kind    Kind
	Entry   *dwarf.Entry // the outermost one; a split unit's includes the attributes of its skeleton
	At, End dwarf.Offset // of its header, and of the first byte after it
	Version uint16
	Low     uint64 // base of addresses in its lists
	Far     bool   // its entries may refer to other units
	Opaque  bool   // strings of its entries may be elsewhere than in .debug_str or in itself

	data     *Data
	sec      *sections
	region   *region
	skeleton *Unit // of a split unit
	table    *table
	first    dwarf.Offset // its outermost entry
	wide     bool
	addrSize byte
	id       uint64 // of a split unit or a skeleton; 0 for others

	strBase, addrBase, rngBase, locBase, rangesBase uint64
}

// readUnits reads the units of a section. In an old section, types, all are type
// units. If skeletons is not nil the units are split: compile units belong to the
// skeletons with their IDs.
func (d *Data) readUnits(r *region, sec *sections, types bool, skeletons map[uint64]*Unit) error {
	for off := uint64(0); off+11 <= uint64(len(r.info)); {
		if len(d.Units)+len(d.skeletons) >= maxUnits {
			return fmt.Errorf("more than %d units", maxUnits)
		}
		u, next, err := d.readHeader(r, sec, off, types)
		if err != nil {
			return err
		}
		off = next
		if u == nil {
			continue
		}
		if err := u.readRoot(skeletons); err != nil {
			return fmt.Errorf("unit at %#x: %w", uint64(u.At)-r.base, err)
		}
		if u.dwo() != "" && !sec.split {
			d.skeletons = append(d.skeletons, u)
			continue
		}
		d.Units = append(d.Units, u)
	}
	return nil
}

// readHeader reads a unit's header (DWARF 5, 7.5.1); nil: its kind is not known, and
// it is skipped.
func (d *Data) readHeader(r *region, sec *sections, off uint64, types bool) (u *Unit, next uint64, err error) {
	damaged := func() (*Unit, uint64, error) {
		return nil, 0, fmt.Errorf("the unit at %#x is damaged", off)
	}
	c := cursorAt(r.info, off)
	n := c.u32()
	u = &Unit{data: d, sec: sec, region: r, At: dwarf.Offset(r.base + off), addrSize: 8}
	if n == 0xffffffff {
		u.wide, n = true, c.u64()
	}
	if c.bad || n > uint64(len(c.b)) || n < 7 {
		return damaged()
	}
	next = uint64(len(r.info)) - uint64(len(c.b)) + n
	c.b = c.b[:n]
	u.End = dwarf.Offset(r.base + next)
	u.Version = uint16(c.u16())
	if u.Version < 2 || u.Version > 5 {
		return nil, 0, fmt.Errorf("the unit at %#x has DWARF version %d, and 2 to 5 are known: rebuild with -gdwarf-5", off, u.Version)
	}
	kind := uint64(utCompile)
	if types {
		kind = utType
	}
	var abbrev uint64
	if u.Version >= 5 {
		kind, u.addrSize = c.u8(), byte(c.u8())
		abbrev = c.word(u.wide)
	} else {
		abbrev = c.word(u.wide)
		u.addrSize = byte(c.u8())
	}
	var signature, typeAt uint64
	switch kind {
	case utCompile, utPartial:
	case utSkeleton, utSplitCompile:
		u.id = c.u64()
	case utType, utSplitType:
		u.Kind, signature, typeAt = Type, c.u64(), c.word(u.wide)
	default:
		return nil, next, nil
	}
	if kind == utPartial {
		u.Kind = Partial
	}
	if c.bad || u.addrSize != 4 && u.addrSize != 8 {
		return damaged()
	}
	u.first = dwarf.Offset(r.base + next - uint64(len(c.b)))
	if u.Kind == Type {
		if to := u.At + dwarf.Offset(typeAt); typeAt < uint64(u.End-u.At) && to >= u.first {
			if _, known := d.signatures[signature]; !known {
				d.signatures[signature] = to
			}
		}
	}
	if u.table, err = d.table(sec.abbrev, abbrev); err != nil {
		return nil, 0, fmt.Errorf("unit at %#x: %w", off, err)
	}
	u.Far, u.Opaque = u.table.far, u.table.opaque
	return u, next, nil
}

// readRoot reads a unit's outermost entry.
func (u *Unit) readRoot(skeletons map[uint64]*Unit) error {
	if err := u.readBases(); err != nil {
		return err
	}
	if s := skeletons[u.id]; u.Kind == Compile && s != nil {
		u.skeleton, u.Low = s, s.Low
		u.addrBase, u.rangesBase = s.addrBase, s.rangesBase
	}
	r := &Reader{data: u.data, unit: u, pos: uint64(u.first) - u.region.base}
	e, err := r.Next()
	if err != nil {
		return err
	}
	if e == nil || e.Tag == 0 {
		e = &dwarf.Entry{Offset: u.first, Tag: dwarf.TagCompileUnit} // an empty unit
	}
	if e.Tag == dwarf.TagPartialUnit {
		u.Kind = Partial
	}
	u.Entry = e
	if low, ok := e.Val(dwarf.AttrLowpc).(uint64); ok {
		u.Low = low
	}
	if u.skeleton != nil {
		for _, f := range u.skeleton.Entry.Field {
			if e.AttrField(f.Attr) == nil {
				e.Field = append(e.Field, f)
			}
		}
	}
	return nil
}

// readBases reads the attributes of the outermost entry that are bases of others, and
// a split unit's ID.
func (u *Unit) readBases() error {
	head := uint64(8) // of a table in a section of DWARF 5: its length, version and sizes
	if u.wide {
		head = 16
	}
	if u.Version >= 5 {
		u.strBase, u.rngBase, u.locBase, u.addrBase = head, head+4, head+4, head
	}
	c := cursorAt(u.region.info, uint64(u.first)-u.region.base)
	c.b = c.b[:min(uint64(len(c.b)), uint64(u.End-u.first))]
	code := c.uleb()
	a := u.table.find(code)
	if a == nil {
		if code == 0 {
			return nil
		}
		return fmt.Errorf("%w: no abbreviation %d", errDamaged, code)
	}
	for k := range a.attrs {
		v := u.readRaw(c, &a.attrs[k])
		switch a.attrs[k].attr {
		case dwarf.AttrStrOffsetsBase:
			u.strBase = v.n
		case dwarf.AttrAddrBase, attrGNUAddrBase:
			u.addrBase = v.n
		case dwarf.AttrRnglistsBase:
			u.rngBase = v.n
		case dwarf.AttrLoclistsBase:
			u.locBase = v.n
		case attrGNURangesBase:
			u.rangesBase = v.n
		case attrGNUDwoID:
			u.id = v.n
		}
	}
	if c.bad {
		return fmt.Errorf("%w: its first entry is cut off", errDamaged)
	}
	return nil
}

// dwo returns the name of the file with the unit's entries, or "".
func (u *Unit) dwo() string {
	for _, a := range []dwarf.Attr{dwarf.AttrDwoName, attrGNUDwoName} {
		if name, ok := u.Entry.Val(a).(string); ok {
			return name
		}
	}
	return ""
}

// Address returns an address of .debug_addr by its index.
func (u *Unit) Address(n uint64) (uint64, error) {
	b := u.data.main.addr
	if size := uint64(u.addrSize); n <= uint64(len(b))/size && u.addrBase <= uint64(len(b)) {
		c := cursorAt(b, u.addrBase+n*size)
		v := c.u64
		if size == 4 {
			v = c.u32
		}
		if v := v(); !c.bad {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%w: address %d is not in .debug_addr", errDamaged, n)
}

// Locations returns the unit's .debug_loc or, from DWARF 5 on, .debug_loclists, and
// the base of list indexes.
func (u *Unit) Locations() (b []byte, base uint64) {
	if u.Version < 5 {
		return u.sec.loc, 0
	}
	return u.sec.loclists, u.locBase
}

// Wide reports whether the unit's offsets have 8 bytes.
func (u *Unit) Wide() bool { return u.wide }

// IsSplit reports whether the unit's entries are in a separate file.
func (u *Unit) IsSplit() bool { return u.sec.split }

// Bytes returns the unit's own bytes, and the strings that its entries refer to,
// except for Opaque units.
func (u *Unit) Bytes() (own, str []byte) {
	return u.region.info[uint64(u.At)-u.region.base : uint64(u.End)-u.region.base], u.sec.str
}
