package debuginfo

import (
	"debug/dwarf"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest/dies"
)

// TestHollowBlocks: declarations of a block without code hide nothing in the blocks
// that contain an address, however deeply the block is nested.
func TestHollowBlocks(t *testing.T) {
	const compiled, function, hollow, block, variable = 1, 2, 3, 4, 5
	abbrev := []byte{
		compiled, 0x11, 1, 0, 0, // DW_TAG_compile_unit, with children
		function, 0x2e, 1, 0, 0, // DW_TAG_subprogram
		hollow, 0x0b, 1, 0, 0, // DW_TAG_lexical_block
		block, 0x0b, 1, 0x11, 0x01, 0x12, 0x06, 0, 0, // with DW_AT_low_pc (DW_FORM_addr), DW_AT_high_pc (DW_FORM_data4)
		variable, 0x34, 0, 0x03, 0x08, 0, 0, // DW_TAG_variable with DW_AT_name (DW_FORM_string)
		0,
	}
	code := func(low byte) []byte { return []byte{block, low, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0} }
	body := slices.Concat(
		[]byte{compiled, function, variable, 'f', 0},
		[]byte{hollow, hollow, variable, 'h', 0, 0, variable, 'g', 0}, code(0x10), []byte{variable, 'i', 0, 0, 0},
		code(0x10), []byte{variable, 'a', 0, variable, 'b', 0}, code(0x12), []byte{variable, 'c', 0, 0, 0},
		code(0x20), []byte{variable, 'n', 0, 0},
		[]byte{0, 0},
	)
	header := []byte{byte(7 + len(body)), 0, 0, 0, 4, 0, 0, 0, 0, 0, 8}
	info := slices.Concat(header, body)
	i, err := New(&dies.File{Section: func(name string) ([]byte, error) {
		return map[string][]byte{".debug_abbrev": abbrev, ".debug_info": info}[name], nil
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	all, err := i.declarations(&instance{at: dwarf.Offset(len(header) + 1)}, 0x13)
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, d := range all {
		names += d.Val(dwarf.AttrName).(string)
	}
	if names != "cabfhig" {
		t.Errorf("%q", names)
	}
}
