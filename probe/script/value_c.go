package script

import (
	"encoding/binary"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// maxParts bounds the members and elements of a value that are printed: unions of
// unions in a guest's types could have any number.
const maxParts = 4096

// cutOff replaces the parts after maxParts.
const cutOff = "..."

// cPrinter prints a value in C's syntax; left is the number of parts that may still
// be printed.
type cPrinter struct {
	*Printer
	json  bool
	left  int
	lines bool // each member of a structure in a line of its own, strings in quotes
	depth int  // the number of enclosing structures

	symbolAt func(uint64) string // describes the target of an address, or ""; nil: not shown
}

// CValue prints a value of a guest's type, with its bytes in data: with json as JSON,
// otherwise as C would write it, a line for each member of a structure.
func CValue(t btf.Type, data []byte, json bool) string {
	of := &Path{Type: t}
	if json {
		return of.JSON(data)
	}
	return of.Text(data, nil)
}

// CLine is CValue as C writes it, in one line.
func CLine(t btf.Type, data []byte) string {
	return (&Printer{}).cValue(fromC(t), data, false)
}

// cValue prints a structure, a union or an array.
func (p *Printer) cValue(t Type, data []byte, json bool) string {
	c := &cPrinter{Printer: p, json: json, left: maxParts}
	return c.value(t, data)
}

func (c *cPrinter) value(t Type, data []byte) string {
	if c.left--; c.left < 0 {
		return c.placeholder(cutOff)
	}
	if t.Kind == Array && t.C != nil {
		return c.number(t, data, 0, 0)
	}
	var parts []string
	switch t.Kind {
	case Array:
		e := t.Elems[0]
		for i := range t.Depth {
			if c.left <= 0 {
				parts = append(parts, c.placeholder(cutOff))
				break
			}
			parts = append(parts, c.part(e, data, uint64(8*i*e.sizeInC()), 0))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case Struct:
		c.depth++
		c.members(t.C, data, 0, &parts)
		c.depth--
		switch {
		case c.json:
			return "{" + strings.Join(parts, ", ") + "}"
		case len(parts) == 0:
			return "{}"
		case c.lines:
			in := "\n" + strings.Repeat("  ", c.depth)
			return "{" + in + "  " + strings.Join(parts, in+"  ") + in + "}"
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	}
	if c.json {
		return c.Printer.json(t, data)
	}
	if c.lines && t.Kind == String {
		return strconv.Quote(stringOf(data))
	}
	text := c.text(t, data)
	if t.Kind == Pointer && c.symbolAt != nil {
		if s := c.symbolAt(word(data)); s != "" {
			text += " <" + s + ">"
		}
	}
	return text
}

// number prints a number that is an Array here; for a bit field, the width bits from
// bit on.
func (c *cPrinter) number(t Type, data []byte, bit, width uint64) string {
	if f, ok := t.C.(*btf.Float); ok {
		format, _ := formatOf(f)
		text, exact := format.text(data)
		if c.json {
			return jsonFloat(text, exact)
		}
		return text
	}
	if width == 0 {
		width = 8 * uint64(len(data))
	}
	bits := bigOf(data)
	v := lowBits(bits.Rsh(bits, uint(bit)), uint(width))
	if t.C.(*btf.Int).Encoding == btf.Signed && v.Bit(int(width-1)) == 1 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(width)))
	}
	if c.json {
		return jsonBig(v)
	}
	return v.String()
}

// members prints the members of a structure that begins at a bit, and the members of
// anonymous structures in it.
func (c *cPrinter) members(t btf.Type, data []byte, bit uint64, parts *[]string) {
	ms, _ := types.Members(t)
	for _, m := range ms {
		if c.left <= 0 {
			if c.json {
				*parts = append(*parts, c.placeholder(cutOff)+": true")
			} else {
				*parts = append(*parts, cutOff)
			}
			return
		}
		at := bit + uint64(m.Offset)
		if _, ok := types.Members(m.Type); ok && m.Name == "" {
			c.left--
			c.members(m.Type, data, at, parts)
			continue
		}
		text := c.part(fromC(m.Type), data, at, uint64(m.BitfieldSize))
		if c.json {
			*parts = append(*parts, jsonText(m.Name)+": "+text)
		} else {
			*parts = append(*parts, "."+m.Name+" = "+text)
		}
	}
}

// placeholder replaces a value that is not printed.
func (c *cPrinter) placeholder(sign string) string {
	if c.json {
		return jsonText(sign)
	}
	return sign
}

// part prints a value that begins at bit, and has width bits if it is a bit field.
func (c *cPrinter) part(t Type, data []byte, bit, width uint64) string {
	n := uint64(t.sizeInC())
	if width > 0 {
		n = (bit%8 + width + 7) / 8
	}
	at := bit / 8
	wide := t.Kind == Array && t.C != nil
	if at+n > uint64(len(data)) || width > 0 && bit%8+width > 64 && !wide {
		return c.placeholder("?") // damaged types
	}
	raw := data[at : at+n]
	if wide && width > 0 {
		return c.number(t, raw, bit%8, width)
	}
	switch t.Kind {
	case Struct, Array:
		return c.value(t, raw)
	case String:
		return c.value(t, append(slices.Clone(raw), 0))
	case Void:
		return c.placeholder("?")
	}
	var b [8]byte
	copy(b[:], raw)
	v, bits := word(b[:])>>(bit%8), 8*n
	if width > 0 {
		bits = width
	}
	v <<= 64 - bits
	if t.Signed {
		v = uint64(int64(v) >> (64 - bits))
	} else {
		v >>= 64 - bits
	}
	return c.value(t, binary.LittleEndian.AppendUint64(nil, v))
}

// enumeratorName returns an enumeration's name for a number, or "".
func (t Type) enumeratorName(v uint64) string {
	e, ok := t.C.(*btf.Enum)
	if !ok {
		return ""
	}
	for _, x := range e.Values {
		if x.Value == v {
			return x.Name
		}
	}
	return ""
}
