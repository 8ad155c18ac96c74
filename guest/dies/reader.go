package dies

import (
	"debug/dwarf"
	"fmt"
)

// Reader reads entries one after the other, as debug/dwarf's does, up to the end of the unit that it was set to.
type Reader struct {
	data *Data
	unit *Unit // nil: at no entry
	pos  uint64
}

// Reader returns a reader that is at no entry yet.
func (d *Data) Reader() *Reader { return &Reader{data: d} }

// Seek sets the reader to the entry at an offset.
func (r *Reader) Seek(off dwarf.Offset) {
	if r.unit == nil || off < r.unit.first || off >= r.unit.End {
		r.unit = r.data.UnitOf(off)
	}
	if r.unit != nil {
		r.pos = uint64(off) - r.unit.region.base
	}
}

// Unit returns the unit of the entries, or nil.
func (r *Reader) Unit() *Unit { return r.unit }

// cursor returns a cursor at the next entry that ends with the unit; nil after the
// last.
func (r *Reader) cursor() *cursor {
	if r.unit == nil {
		return nil
	}
	end := uint64(r.unit.End) - r.unit.region.base
	if r.pos >= end {
		return nil
	}
	return &cursor{b: r.unit.region.info[r.pos:end]}
}

// notePassed moves the reader to the position of a cursor that it returned.
func (r *Reader) notePassed(c *cursor) {
	r.pos = uint64(r.unit.End) - r.unit.region.base - uint64(len(c.b))
}

// Next returns the next entry, one with tag 0 at the end of siblings, and nil at the end of the unit.
func (r *Reader) Next() (*dwarf.Entry, error) {
	c := r.cursor()
	if c == nil {
		return nil, nil
	}
	u := r.unit
	e := &dwarf.Entry{Offset: dwarf.Offset(u.region.base + r.pos)}
	code := c.uleb()
	if code == 0 && !c.bad {
		r.notePassed(c)
		return e, nil
	}
	a := u.table.find(code)
	if a == nil {
		return nil, r.damagedError("no abbreviation %d", code)
	}
	e.Tag, e.Children = a.tag, a.children
	e.Field = make([]dwarf.Field, 0, len(a.attrs))
	for k := range a.attrs {
		v := u.readRaw(c, &a.attrs[k])
		if c.bad {
			return nil, r.damagedError("an attribute is cut off, or of unknown form %#x", uint64(v.form))
		}
		value, err := u.value(v)
		if err != nil {
			r.unit = nil
			return nil, err
		}
		e.Field = append(e.Field, dwarf.Field{Attr: a.attrs[k].attr, Val: value, Class: v.form.class()})
	}
	r.notePassed(c)
	return e, nil
}

// damagedError returns the error, and ends the reader.
func (r *Reader) damagedError(format string, args ...any) error {
	at := r.pos
	r.unit = nil
	return fmt.Errorf("%w: entry at %#x: %s", errDamaged, at, fmt.Sprintf(format, args...))
}

// class is the class of the few forms by which attributes are distinguished.
func (f form) class() dwarf.Class {
	switch f {
	case formAddr, formAddrx, formAddrx1, formAddrx2, formAddrx3, formAddrx4, formGNUAddrIndex:
		return dwarf.ClassAddress
	case formExprloc:
		return dwarf.ClassExprLoc
	case formBlock, formBlock1, formBlock2, formBlock4, formData16:
		return dwarf.ClassBlock
	case formSecOffset:
		return dwarf.ClassRangeListPtr
	case formLoclistx:
		return dwarf.ClassLocList
	case formRnglistx:
		return dwarf.ClassRngList
	}
	return dwarf.ClassUnknown
}

// Pass skips the children of e, which the reader has just read, and returns how many
// entries it has examined for that.
func (r *Reader) Pass(e *dwarf.Entry) (looked int, err error) {
	if !e.Children {
		return 0, nil
	}
	if r.unit == nil {
		return 0, errDamaged
	}
	if next, ok := e.Val(dwarf.AttrSibling).(dwarf.Offset); ok && next > e.Offset && next < r.unit.End && next >= dwarf.Offset(r.unit.region.base+r.pos) {
		r.Seek(next)
		return 1, nil
	}
	c := r.cursor()
	for depth := 1; depth > 0; looked++ {
		if c == nil || c.bad || len(c.b) == 0 {
			return looked, r.damagedError("the entries in it do not end")
		}
		code := c.uleb()
		if code == 0 {
			depth--
			continue
		}
		a := r.unit.table.find(code)
		if a == nil {
			return looked, r.damagedError("no abbreviation %d in it", code)
		}
		for k := range a.attrs {
			r.unit.readRaw(c, &a.attrs[k])
		}
		if a.children {
			depth++
		}
	}
	r.notePassed(c)
	return looked, nil
}
