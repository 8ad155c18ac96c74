package guest_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// ehEntry is an entry of .eh_frame with the contents b, which begin with its ID.
func ehEntry(b ...byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// ehCIE is that of GCC's: the CFA is RSP + 8, and below it is the return address.
var ehCIE = ehEntry(0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1)

// ehFDE is an FDE that is at pos of a section at 0x601000, of the code from start on.
func ehFDE(pos int, start, size uint32, code ...byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(pos+4))
	b = binary.LittleEndian.AppendUint32(b, start-0x601000-uint32(pos)-8)
	b = binary.LittleEndian.AppendUint32(b, size)
	return ehEntry(append(append(b, 0), code...)...)
}

// TestFrameTable: the rules of a section .eh_frame, up to its terminator or damage.
func TestFrameTable(t *testing.T) {
	section := slices.Clone(ehCIE)
	// push %rbp after 1 byte, sub $24,%rsp after 4 others; a second function makes a frame and ends with a part of which nothing is known.
	section = append(section, ehFDE(len(section), 0x401000, 16, 0x41, 0x0e, 16, 0x86, 2, 0x44, 0x0e, 40)...)
	section = append(section, ehFDE(len(section), 0x401020, 16, 0x44, 0x0d, 6, 0x44, 0x0f, 2, 0x77, 8)...)
	second := len(section)
	section = append(section, ehFDE(len(section), 0x401040, 8, 0x07, 16)...)
	whole := len(section)
	section = append(append(section, 0, 0, 0, 0), ehFDE(whole+4, 0x401050, 8)...)
	entry := guest.FrameRule{CFA: 8, Return: -8}
	want := map[guest.GVA]guest.FrameRule{
		0x401000: entry, 0x401001: {CFA: 16, Return: -8, RBP: -16}, 0x401004: {CFA: 16, Return: -8, RBP: -16}, 0x401005: {CFA: 40, Return: -8, RBP: -16},
		0x40100f: {CFA: 40, Return: -8, RBP: -16}, 0x401020: entry, 0x401024: {Base: guest.FrameRBP, CFA: 8, Return: -8}, 0x401027: {Base: guest.FrameRBP, CFA: 8, Return: -8},
		0x401047: {Outer: true},
	}
	all := []guest.GVA{0, 0x400fff, 0x401000, 0x401001, 0x401004, 0x401005, 0x40100f, 0x401010, 0x401020, 0x401024, 0x401027, 0x401028, 0x40102f, 0x401030, 0x401047, 0x401048, 0x401050}
	check := func(what string, table *guest.FrameTable, rows int, below guest.GVA) {
		t.Helper()
		if table.Rows() != rows {
			t.Errorf("%s: %d rows, want %d", what, table.Rows(), rows)
		}
		for _, pc := range all {
			rule, known := want[pc]
			if known = known && pc < below; !known {
				rule = guest.FrameRule{}
			}
			if got, ok := table.Rule(pc); got != rule || ok != known {
				t.Errorf("%s: at %v %+v, %v, want %+v, %v", what, pc, got, ok, rule, known)
			}
		}
	}
	const none = 1 << 10
	table, err := guest.NewFrameTable(section, 0x601000, none)
	if err != nil {
		t.Fatal(err)
	}
	check("the section", table, 10, 0x402000)
	if n := testing.AllocsPerRun(100, func() { table.Rule(0x401005) }); n != 0 {
		t.Errorf("a look-up allocates %v times", n)
	}
	if table, err = guest.NewFrameTable(section[:second+5], 0x601000, none); err == nil {
		t.Error("a section that is cut off is accepted")
	}
	check("a part", table, 8, 0x401030)
	if table, err = guest.NewFrameTable(section, 0x601000, 6); err == nil || err.Error() != "at 0x38: more than 6 rows" {
		t.Errorf("a section with too many rows: %v", err)
	}
	check("few rows", table, 4, 0x401010)

	// A function whose instructions are longer than any that exists.
	section = slices.Clone(ehCIE)
	section = append(section, ehFDE(len(section), 0x401000, 1<<24, bytes.Repeat([]byte{0x41, 0x0e, 16, 0x41, 0x0e, 8}, 1<<16)...)...)
	if table, err = guest.NewFrameTable(section, 0x601000, 1000); err == nil || table.Rows() != 0 {
		t.Errorf("%d rows, %v", table.Rows(), err)
	}
	if n := testing.AllocsPerRun(1, func() { _, _ = guest.NewFrameTable(section, 0x601000, 1000) }); n > 40 {
		t.Errorf("too many rows allocate %v times", n)
	}
	// Functions that share instructions of that length.
	code := append(binary.AppendUvarint([]byte{0x0f}, 1<<20), make([]byte, 1<<20)...)
	section = ehEntry(append([]byte{0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b}, code...)...)
	for range 300 {
		section = append(section, ehFDE(len(section), 0x401000, 8)...)
	}
	if _, err = guest.NewFrameTable(section, 0x601000, none); err == nil || err.Error() != "at 0x101408: more than 268435456 bytes of instructions" {
		t.Errorf("long instructions: %v", err)
	}
}

// TestEHFrame: where a header says that .eh_frame is.
func TestEHFrame(t *testing.T) {
	for _, c := range []struct {
		header string
		want   guest.GVA
	}{
		{"\x01\x1b\x03\x3b\xfc\x0f\x00\x00\x05\x00\x00\x00", 0x601000}, {"\x01\x1b\x03\x3b\xfc\xff\xff\xff", 0x600000},
		{"\x01\x03\x03\x3b\x00\x10\x40\x00", 0x401000}, {"\x01\xff\x03\x3b\x00\x10\x40\x00", 0}, {"\x02\x1b\x03\x3b\xfc\x0f\x00\x00", 0}, {"\x01\x1b\x03\x3b\xfc\x0f", 0}, {"", 0},
	} {
		if at, err := guest.EHFrame([]byte(c.header), 0x600000); at != c.want || (err == nil) != (c.want != 0) {
			t.Errorf("%q: %v, %v, want %v", c.header, at, err, c.want)
		}
	}
}
