package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// setConstants overwrites the initial contents of constants (const volatile globals,
// which are in .rodata).
func (o *Object) setConstants(vars map[string]*ebpf.VariableSpec, set map[string]string) error {
	for _, name := range sortedKeys(set) {
		v := vars[name]
		switch {
		case v == nil:
			return fmt.Errorf("no variable %q: the file has %q", name, sortedKeys(vars))
		case !v.Constant():
			return fmt.Errorf("variable %q is in %s, and only constants (.rodata) can be set", name, v.SectionName)
		}
		var t btf.Type
		if v.Type != nil {
			t = v.Type.Type
		}
		b, err := encodeValue(t, int(v.Size()), set[name])
		if err != nil {
			return fmt.Errorf("variable %q = %q: %w", name, set[name], err)
		}
		used := false
		for i := range o.Maps {
			if m := &o.Maps[i]; m.Name == v.SectionName {
				if int(v.Offset)+len(b) > len(m.Contents) {
					return fmt.Errorf("variable %q is outside of %s", name, m.Name)
				}
				copy(m.Contents[v.Offset:], b)
				used = true
			}
		}
		if !used {
			return fmt.Errorf("variable %q: no program that is loaded uses %s", name, v.SectionName)
		}
	}
	return nil
}

// encodeValue writes a value of a type: a number, true or false, the name of an enumeration's
// value, or a text. Without a type it is a number.
func encodeValue(t btf.Type, size int, text string) ([]byte, error) {
	b := make([]byte, size)
	unsigned := false
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Array:
		if e, ok := btf.UnderlyingType(t.Type).(*btf.Int); !ok || e.Size != 1 {
			return nil, fmt.Errorf("it is an array of other than characters")
		} else if len(text) >= size {
			return nil, fmt.Errorf("it has room for %d characters and a zero", size-1)
		}
		copy(b, text)
		return b, nil
	case *btf.Int:
		unsigned = t.Encoding != btf.Signed && t.Encoding != btf.Char
		if t.Encoding == btf.Bool {
			on, err := strconv.ParseBool(text)
			if err != nil {
				return nil, fmt.Errorf("it is true or false")
			}
			if on {
				b[0] = 1
			}
			return b, nil
		}
	case *btf.Enum:
		for _, v := range t.Values {
			if v.Name == text {
				text = strconv.FormatInt(int64(v.Value), 10)
				if !t.Signed {
					text = strconv.FormatUint(v.Value, 10)
				}
			}
		}
		unsigned = !t.Signed
	case *btf.Pointer, nil:
		unsigned = t != nil
	default:
		return nil, fmt.Errorf("it is a %s, which cannot be set", strings.TrimPrefix(fmt.Sprintf("%T", t), "*btf."))
	}
	if size != 1 && size != 2 && size != 4 && size != 8 {
		return nil, fmt.Errorf("it has %d bytes, which is no number", size)
	}
	var full [8]byte
	n, err := strconv.ParseUint(text, 0, 8*size)
	if err == nil && !unsigned && t != nil && n>>(8*size-1) != 0 {
		err = strconv.ErrRange
	}
	if err != nil && !unsigned {
		var s int64
		s, err = strconv.ParseInt(text, 0, 8*size)
		n = uint64(s)
	}
	if err != nil {
		kind := "signed"
		if unsigned {
			kind = "unsigned"
		}
		return nil, fmt.Errorf("it is no %s number of %d bits", kind, 8*size)
	}
	binary.LittleEndian.PutUint64(full[:], n)
	return bytes.Clone(full[:size]), nil
}
