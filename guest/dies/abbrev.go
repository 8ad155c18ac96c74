package dies

import (
	"debug/dwarf"
	"fmt"
)

// Limits of abbreviations. An attribute may take no bytes of an entry, so without a
// limit a small file could hold entries with millions of them.
const (
	maxAttributes    = 256     // of one abbreviation
	maxAbbreviations = 1 << 16 // of one unit
	maxDeclared      = 1 << 23 // attributes of all tables
)

// abbreviation is the shape of an entry (DWARF 5, 7.5.3).
type abbreviation struct {
	tag      dwarf.Tag
	children bool
	attrs    []attribute
}

type attribute struct {
	attr  dwarf.Attr
	form  form
	value int64 // of formImplicitConst
}

// table has the abbreviations of a unit.
type table struct {
	byCode []*abbreviation          // codes from 1 on, as compilers number them
	others map[uint64]*abbreviation // all with other codes

	far    bool // entries may refer to other units
	opaque bool // strings of entries are not in .debug_str or in themselves
}

func (t *table) find(code uint64) *abbreviation {
	if code-1 < uint64(len(t.byCode)) {
		return t.byCode[code-1]
	}
	return t.others[code]
}

// table returns the abbreviations at an offset of .debug_abbrev.
func (d *Data) table(abbrev []byte, off uint64) (*table, error) {
	if off >= uint64(len(abbrev)) {
		return nil, fmt.Errorf("%w: abbreviations at %#x of %d bytes", errDamaged, off, len(abbrev))
	}
	key := &abbrev[off]
	if t := d.tables[key]; t != nil {
		return t, nil
	}
	t := &table{}
	c := cursorAt(abbrev, off)
	for n := 0; ; n++ {
		code := c.uleb()
		if c.bad || n == maxAbbreviations {
			return nil, fmt.Errorf("%w: abbreviations at %#x do not end", errDamaged, off)
		}
		if code == 0 {
			break
		}
		a, err := d.abbreviation(c, t)
		if err != nil {
			return nil, fmt.Errorf("%w: abbreviation %d at %#x", err, code, off)
		}
		switch {
		case code == uint64(len(t.byCode))+1:
			t.byCode = append(t.byCode, a)
		case t.find(code) != nil:
			return nil, fmt.Errorf("%w: abbreviation %d at %#x is there twice", errDamaged, code, off)
		case t.others == nil:
			t.others = map[uint64]*abbreviation{}
			fallthrough
		default:
			t.others[code] = a
		}
	}
	d.tables[key] = t
	return t, nil
}

func (d *Data) abbreviation(c *cursor, t *table) (*abbreviation, error) {
	a := &abbreviation{tag: dwarf.Tag(c.uleb()), children: c.u8() != 0}
	for {
		x := attribute{attr: dwarf.Attr(c.uleb()), form: form(c.uleb())}
		if x.form == formImplicitConst {
			x.value = c.sleb()
		}
		switch {
		case c.bad || len(a.attrs) == maxAttributes:
			return nil, errDamaged
		case x.attr == 0 && x.form == 0:
			return a, nil
		}
		if d.declared++; d.declared > maxDeclared {
			return nil, fmt.Errorf("%w: more than %d attributes in abbreviations", errDamaged, maxDeclared)
		}
		switch x.form {
		case formRefAddr, formRefSig8, formRefSup4, formRefSup8, formGNURefAlt, formIndirect:
			t.far = true
		case formStrx, formStrx1, formStrx2, formStrx3, formStrx4, formGNUStrIndex, formStrpSup, formGNUStrpAlt, formLineStrp:
			t.opaque = t.opaque || x.attr != dwarf.AttrCompDir && x.attr != dwarf.AttrProducer && a.tag != dwarf.TagCompileUnit
		}
		a.attrs = append(a.attrs, x)
	}
}
