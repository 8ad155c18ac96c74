package debuginfo

import (
	"debug/dwarf"
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestExpressions: what each kind of expression says, and why others cannot be had.
func TestExpressions(t *testing.T) {
	frame := func() (number, error) { return number{base: BaseCFA, off: []int64{-16}}, nil }
	address := func(n uint64) (uint64, error) {
		if n > 1 {
			return 0, errDamaged
		}
		return 0x5000 + n, nil
	}
	for _, tt := range []struct {
		code string
		want Location
		why  string
	}{
		{"\x53", Location{BaseRegister, 3, []int64{0}, false}, ""},
		{"\x90\x0f", Location{BaseRegister, 15, []int64{0}, false}, ""},
		{"\x76\x78", Location{BaseRegister, 6, []int64{-8}, true}, ""},
		{"\x92\x05\x80\x01", Location{BaseRegister, 5, []int64{128}, true}, ""},
		{"\x75\x03\x9f", Location{BaseRegister, 5, []int64{3}, false}, ""},
		{"\x75\x03\x23\x05\x9f", Location{BaseRegister, 5, []int64{8}, false}, ""},
		{"\x75\x03\x33\x1c\x9f", Location{BaseRegister, 5, []int64{0}, false}, ""},
		{"\x32\x75\x03\x22\x06\x23\x10", Location{BaseRegister, 5, []int64{5, 16}, true}, ""},
		{"\x91\x58", Location{BaseCFA, 0, []int64{-56}, true}, ""},
		{"\x91\x58\x06", Location{BaseCFA, 0, []int64{-56, 0}, true}, ""},
		{"\x9c\x96", Location{BaseCFA, 0, []int64{0}, true}, ""},
		{"\x03\x00\x10\x00\x81\xff\xff\xff\xff", Location{BaseProgram, 0, []int64{-0x7efff000}, true}, ""},
		{"\xa1\x01", Location{BaseProgram, 0, []int64{0x5001}, true}, ""},
		{"\xa2\x01\x9f", Location{BaseNone, 0, []int64{0x5001}, false}, ""},
		{"\x09\xff\x9f", Location{BaseNone, 0, []int64{-1}, false}, ""},
		{"\x08\xff\x9f", Location{BaseNone, 0, []int64{255}, false}, ""},
		{"\x0b\x00\x80\x9f", Location{BaseNone, 0, []int64{-32768}, false}, ""},
		{"\x0e\x01\x00\x00\x00\x00\x00\x00\x80\x9f", Location{BaseNone, 0, []int64{-1<<63 + 1}, false}, ""},
		{"\x10\x81\x01\x9f", Location{BaseNone, 0, []int64{129}, false}, ""},
		{"\x11\x7f\x9f", Location{BaseNone, 0, []int64{-1}, false}, ""},
		{"\x9e\x02\x34\x12", Location{BaseNone, 0, []int64{0x1234}, false}, ""},
		{"", Location{}, "optimized out"},
		{"\xa3\x01\x55\x9f", Location{BaseEntry, 5, []int64{0}, false}, ""},
		{"\xf3\x01\x55\x23\x03\x9f", Location{BaseEntry, 5, []int64{3}, false}, ""},
		{"\x53\x93\x04\x93\x04", Location{}, "DW_OP_piece"},
		{"\x93\x04", Location{}, "DW_OP_piece"},
		{"\x9e\x09123456789", Location{}, "DW_OP_piece"},
		{"\xa0\x00\x00\x00\x00\x00", Location{}, "DW_OP_implicit_pointer"},
		{"\x08\x10\xe0", Location{}, "DW_OP_form_tls_address"},
		{"\x61", Location{}, "register 17"},
		{"\x70\x00\x31\x24\x9f", Location{}, "DW_OP_shl"},
		{"\x70\x00\x71\x00\x22\x9f", Location{}, "DW_OP_plus"},
		{"\x70\x00\x94\x04\x9f", Location{}, "computed"},
		{"\x75" + strings.Repeat("\x00\x06", 1) + strings.Repeat("\x06", 20), Location{}, "computed"},
		{"\x22", Location{}, "damaged"},
		{"\x03\x00", Location{}, "damaged"},
		{"\x75", Location{}, "damaged"},
		{"\x9f", Location{}, "damaged"},
		{"\x96", Location{}, "damaged"},
		{"\x53\x53", Location{}, "damaged"},
		{"\xa1\x02", Location{}, "damaged"},
		{"\x9e\x7f", Location{}, "damaged"},
		{strings.Repeat("\x30", 100), Location{}, "damaged"},
		{strings.Repeat("\x96", maxExpression+1), Location{}, "damaged"},
	} {
		x := expression{code: []byte(tt.code), frame: frame, address: address}
		got, err := x.location()
		if (err == nil) != (tt.why == "") || err != nil && !strings.Contains(err.Error(), tt.why) || err == nil && !reflect.DeepEqual(got, tt.want) {
			t.Errorf("% x: %+v, %v, want %+v %s", tt.code, got, err, tt.want, tt.why)
		}
	}
}

// TestLists looks into location lists of both forms.
func TestLists(t *testing.T) {
	le := binary.LittleEndian
	address := func(n uint64) (uint64, error) {
		if n > 1 {
			return 0, errDamaged
		}
		return 0x2000 + 0x1000*n, nil
	}
	v5 := lists{base: 4, low: 0x1000, version: 5, address: address}
	list := []byte{
		lleViewPair, 1, 2,
		lleOffsetPair, 0x10, 0x20, 1, 0xa0, // 1010 to 1020
		lleBaseAddressx, 0, lleOffsetPair, 0x10, 0x20, 1, 0xa1, // 2010 to 2020
		lleStartxLength, 1, 0x10, 1, 0xa2, // 3000 to 3010
		lleStartxEndx, 0, 1, 1, 0xa3, // 2000 to 3000, except for the range above
		lleOffsetPair, 0x10, 0x10, 1, 0xa9, // nowhere
	}
	list = append(le.AppendUint64(append(list, lleBaseAddress), 0x4000), lleOffsetPair, 0, 0x10, 1, 0xa4) // 4000 to 4010
	list = append(le.AppendUint64(le.AppendUint64(append(list, lleStartEnd), 0x5000), 0x5010), 1, 0xa5)   // 5000 to 5010
	list = append(le.AppendUint64(append(list, lleStartLength), 0x6000), 0x10, 1, 0xa6)                   // 6000 to 6010
	list = append(list, lleDefault, 1, 0xa7, lleEnd)
	v5.b = append(le.AppendUint32(make([]byte, 4), 4), list...) // its number is 0, at base + 4
	v4 := lists{low: 0x1000, version: 4, address: address}
	old := le.AppendUint64(le.AppendUint64(nil, 0x10), 0x20)
	old = append(le.AppendUint16(old, 1), 0xb0)
	old = le.AppendUint64(le.AppendUint64(old, 1<<64-1), 0x7000)
	old = append(le.AppendUint16(le.AppendUint64(le.AppendUint64(old, 0), 0x10), 1), 0xb1)
	v4.b = le.AppendUint64(le.AppendUint64(old, 0), 0)
	for addr, want := range map[uint64]string{
		0x100f: "\xa7", 0x1010: "\xa0", 0x101f: "\xa0", 0x2010: "\xa1", 0x300f: "\xa2", 0x2020: "\xa3", 0x2fff: "\xa3", 0x4000: "\xa4", 0x500f: "\xa5", 0x6010: "\xa7", 0x600f: "\xa6",
	} {
		for _, val := range []any{int64(8), uint64(0)} {
			if b, err := v5.expression(&dwarf.Field{Val: val}, addr); err != nil || string(b) != want {
				t.Errorf("%#x: % x, %v, want % x", addr, b, err, want)
			}
		}
	}
	for addr, want := range map[uint64]string{0x1010: "\xb0", 0x1020: "", 0x7000: "\xb1", 0x7010: ""} {
		if b, err := v4.expression(&dwarf.Field{Val: int64(0)}, addr); err != nil || string(b) != want {
			t.Errorf("%#x: % x, %v, want % x", addr, b, err, want)
		}
	}
	split := lists{version: 4, split: true, address: address, b: []byte{
		lleGNUBaseAddress, 1, lleGNUStartLength, 0, 0x10, 0, 0, 0, 1, 0, 0xc0, // 2000 to 2010
		lleGNUStartEnd, 0, 1, 1, 0, 0xc1, lleGNUEnd, // 2000 to 3000
	}}
	for addr, want := range map[uint64]string{0x200f: "\xc0", 0x2010: "\xc1", 0x3000: ""} {
		if b, err := split.expression(&dwarf.Field{Val: int64(0)}, addr); err != nil || string(b) != want {
			t.Errorf("%#x: % x, %v, want % x", addr, b, err, want)
		}
	}
	for _, val := range []any{int64(-1), int64(1 << 40), uint64(1 << 60), uint64(77), "x", nil} {
		for _, l := range []lists{v5, v4, {version: 5, address: address}} {
			if b, err := l.expression(&dwarf.Field{Val: val}, 0x1010); err == nil {
				t.Errorf("%v: % x", val, b)
			}
		}
	}
	whole := v5.b
	for n := 8; n < len(whole)-1; n++ { // cut anywhere it ends in an error, or where it is enough
		v5.b = whole[:n]
		if b, err := v5.find(8, 0x9999); err == nil {
			t.Errorf("cut at %d: % x", n, b)
		}
	}
}

// TestVariables: the variables of the built-in guest's vfs_read.
func TestVariables(t *testing.T) {
	i, _ := guest(t)
	places, err := i.Places("fs.c", 71)
	if err != nil || len(places) != 1 || places[0].Function != "vfs_read" {
		t.Fatal(places, err)
	}
	at := places[0].Addr
	v, err := i.Variable(at, "", "count", nil)
	if err != nil || v.Why != nil || !v.Parameter || v.Function != "vfs_read" || !reflect.DeepEqual(v.Where, Location{BaseRegister, 1, []int64{0}, false}) {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err = i.Variable(at, "", "f", []string{"size"}); err != nil || !errors.Is(v.Why, errOptimizedOut) {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err = i.Variable(at, "", "vfs_bytes_read", nil); err != nil || v.Why != nil || v.Function != "" || v.Where.Base != BaseProgram || !v.Where.Memory {
		t.Errorf("%+v, %v", v, err)
	}
	var none *NoVariableError
	if _, err = i.Variable(at, "", "nothing", nil); !errors.As(err, &none) || err.Error() != "no variable nothing: these are fd, buf, count, pos, f, flags" {
		t.Error(err)
	}
	if _, err := i.Variable(0x1234, "", "fd", nil); err == nil {
		t.Error("there are variables outside the code")
	}
	// Where a copy of an inlined function begins are variables of the function around it,
	// or, where that was asked for, its own.
	copies, err := i.InlinedCopies("irq_restore")
	if err != nil {
		t.Fatal(err)
	}
	own := 0
	for _, at := range copies {
		around, err := i.Variables(at, "")
		inner, err2 := i.Variables(at, "irq_restore")
		if err != nil || err2 != nil || len(inner) != len(around) && !slices.ContainsFunc(around, func(v Variable) bool { return v.Name == "flags" }) {
			t.Errorf("%#x: %v, %v", at, err, err2)
			continue
		}
		if inner[0].Name != "flags" || inner[0].Function != "irq_restore" {
			t.Errorf("%#x: %+v", at, inner)
		}
		if around[0].Function != "irq_restore" {
			own++
		}
	}
	if own < len(copies)/2 {
		t.Errorf("at %d of %d copies the function around comes first", own, len(copies))
	}
}

// FuzzLocation: whatever stands in an expression or a list costs no more than its bytes.
func FuzzLocation(f *testing.F) {
	f.Add([]byte("\x75\x03\x9f"), uint64(0x1010))
	f.Add([]byte{lleOffsetPair, 0x10, 0x20, 1, 0x50, lleEnd}, uint64(0x1010))
	f.Fuzz(func(t *testing.T, b []byte, addr uint64) {
		x := expression{code: b, frame: func() (number, error) { return constant(0), nil }, address: func(n uint64) (uint64, error) { return n, nil }}
		if l, err := x.location(); err == nil && (len(l.Offsets) == 0 || len(l.Offsets) > maxSteps+1 || l.Reg < 0 || l.Reg >= regIP) {
			t.Errorf("% x: %+v", b, l)
		}
		for _, l := range []lists{{version: 4}, {version: 4, split: true}, {version: 5}, {version: 5, wide: true}} {
			l.b, l.low, l.address = b, 0x1000, func(n uint64) (uint64, error) { return n, nil }
			for _, val := range []any{int64(0), uint64(0)} {
				_, _ = l.expression(&dwarf.Field{Val: val}, addr)
			}
		}
	})
}
