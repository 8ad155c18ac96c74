package dies

import (
	"debug/dwarf"
	"errors"
	"fmt"
)

var errDamaged = errors.New("damaged debug information")

// form is the encoding of an attribute's value (DWARF 5, 7.5.6).
type form uint32

const (
	formAddr      form = 0x01
	formBlock2    form = 0x03
	formBlock4    form = 0x04
	formData2     form = 0x05
	formData4     form = 0x06
	formData8     form = 0x07
	formString    form = 0x08
	formBlock     form = 0x09
	formBlock1    form = 0x0a
	formData1     form = 0x0b
	formFlag      form = 0x0c
	formSdata     form = 0x0d
	formStrp      form = 0x0e
	formUdata     form = 0x0f
	formRefAddr   form = 0x10
	formRef1      form = 0x11
	formRef2      form = 0x12
	formRef4      form = 0x13
	formRef8      form = 0x14
	formRefUdata  form = 0x15
	formIndirect  form = 0x16
	formSecOffset form = 0x17
	formExprloc   form = 0x18
	formFlagTrue  form = 0x19 // DW_FORM_flag_present
	formStrx      form = 0x1a
	formAddrx     form = 0x1b
	formRefSup4   form = 0x1c
	formStrpSup   form = 0x1d
	formData16    form = 0x1e
	formLineStrp  form = 0x1f
	formRefSig8   form = 0x20

	formImplicitConst form = 0x21
	formLoclistx      form = 0x22
	formRnglistx      form = 0x23
	formRefSup8       form = 0x24
	formStrx1         form = 0x25
	formStrx2         form = 0x26
	formStrx3         form = 0x27
	formStrx4         form = 0x28
	formAddrx1        form = 0x29
	formAddrx2        form = 0x2a
	formAddrx3        form = 0x2b
	formAddrx4        form = 0x2c

	formGNUAddrIndex form = 0x1f01
	formGNUStrIndex  form = 0x1f02
	formGNURefAlt    form = 0x1f20
	formGNUStrpAlt   form = 0x1f21
)

// raw is an undecoded value: a number, or bytes.
type raw struct {
	form form
	n    uint64
	b    []byte
}

// readRaw reads a value without resolving it.
func (u *Unit) readRaw(c *cursor, x *attribute) raw {
	v := raw{form: x.form}
	if v.form == formIndirect {
		if v.form = form(c.uleb()); v.form == formIndirect || v.form == formImplicitConst {
			c.bad = true // a form that leads to no value
			return v
		}
	}
	switch v.form {
	case formAddr:
		if u.addrSize == 4 {
			v.n = c.u32()
		} else {
			v.n = c.u64()
		}
	case formData1, formRef1, formFlag, formStrx1, formAddrx1:
		v.n = c.u8()
	case formData2, formRef2, formStrx2, formAddrx2:
		v.n = c.u16()
	case formStrx3, formAddrx3:
		v.n = c.u24()
	case formData4, formRef4, formStrx4, formAddrx4, formRefSup4:
		v.n = c.u32()
	case formData8, formRef8, formRefSig8, formRefSup8:
		v.n = c.u64()
	case formUdata, formRefUdata, formStrx, formAddrx, formLoclistx, formRnglistx, formGNUAddrIndex, formGNUStrIndex:
		v.n = c.uleb()
	case formSdata:
		v.n = uint64(c.sleb())
	case formStrp, formLineStrp, formSecOffset, formStrpSup, formGNURefAlt, formGNUStrpAlt:
		v.n = c.word(u.wide)
	case formRefAddr:
		switch {
		case u.Version > 2:
			v.n = c.word(u.wide)
		case u.addrSize == 4:
			v.n = c.u32()
		default:
			v.n = c.u64()
		}
	case formFlagTrue:
		v.n = 1
	case formImplicitConst:
		v.n = uint64(x.value)
	case formString:
		v.b = c.cstring()
	case formBlock1:
		v.b = c.take(c.u8())
	case formBlock2:
		v.b = c.take(c.u16())
	case formBlock4:
		v.b = c.take(c.u32())
	case formBlock, formExprloc:
		v.b = c.take(c.uleb())
	case formData16:
		v.b = c.take(16)
	default:
		c.bad = true
	}
	return v
}

// value resolves a value to the type of debug/dwarf: uint64 for addresses and indexes
// of lists, int64 for constants and offsets of other sections, dwarf.Offset for
// references, string, bool, []byte.
func (u *Unit) value(v raw) (any, error) {
	switch v.form {
	case formAddr, formLoclistx, formRnglistx:
		return v.n, nil
	case formAddrx, formAddrx1, formAddrx2, formAddrx3, formAddrx4, formGNUAddrIndex:
		return u.Address(v.n)
	case formFlag, formFlagTrue:
		return v.n != 0, nil
	case formRef1, formRef2, formRef4, formRef8, formRefUdata:
		if v.n >= uint64(u.End-u.At) {
			return nil, fmt.Errorf("%w: a reference leads out of its unit", errDamaged)
		}
		return u.At + dwarf.Offset(v.n), nil
	case formRefAddr:
		return u.region.offset(v.n)
	case formRefSup4, formRefSup8, formGNURefAlt:
		if u.sec.sup == nil {
			return nil, fmt.Errorf("%w: a reference leads to a supplementary file, and none is named", errDamaged)
		}
		return u.sec.sup.region.offset(v.n)
	case formRefSig8:
		to, ok := u.data.signatures[v.n]
		if !ok {
			return nil, fmt.Errorf("%w: no type unit has the signature %#x", errDamaged, v.n)
		}
		return to, nil
	case formString:
		return string(v.b), nil
	case formStrp:
		return text(u.sec.str, v.n)
	case formLineStrp:
		return text(u.sec.lineStr, v.n)
	case formStrpSup, formGNUStrpAlt:
		if u.sec.sup == nil {
			return nil, fmt.Errorf("%w: a string is in a supplementary file, and none is named", errDamaged)
		}
		return text(u.sec.sup.sec.str, v.n)
	case formStrx, formStrx1, formStrx2, formStrx3, formStrx4, formGNUStrIndex:
		size := wordSize(u.wide)
		if v.n > uint64(len(u.sec.strOffsets))/size {
			return nil, fmt.Errorf("%w: string %d is not in .debug_str_offsets", errDamaged, v.n)
		}
		c := cursorAt(u.sec.strOffsets, u.strBase+v.n*size)
		if off := c.word(u.wide); !c.bad {
			return text(u.sec.str, off)
		}
		return nil, fmt.Errorf("%w: string %d is not in .debug_str_offsets", errDamaged, v.n)
	case formBlock, formBlock1, formBlock2, formBlock4, formExprloc, formData16:
		return v.b, nil
	}
	return int64(v.n), nil
}

// text returns the string at an offset of a section.
func text(b []byte, off uint64) (any, error) {
	c := cursorAt(b, off)
	if s := c.cstring(); !c.bad {
		return string(s), nil // a copy: the file may be truncated
	}
	return nil, fmt.Errorf("%w: a string at %#x of %d bytes", errDamaged, off, len(b))
}

func wordSize(wide bool) uint64 {
	if wide {
		return 8
	}
	return 4
}
