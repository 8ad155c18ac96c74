package flow

import (
	"encoding/binary"
	"slices"
	"testing"
)

// TestJumpTables finds the tables of switches as gcc and clang emit them, and
// refuses what only looks like one.
func TestJumpTables(t *testing.T) {
	const tableAt = base + 0x1000
	// The cases are at 0x18, 0x1e and 0x24.
	const cases = " b8 01 00 00 00 c3 b8 02 00 00 00 c3 b8 03 00 00 00 c3 90 90 90 90 90 90"
	rel := func(ts ...uint64) (b []byte) {
		for _, to := range ts {
			b = binary.LittleEndian.AppendUint32(b, uint32(base+to-tableAt))
		}
		return b
	}
	abs := func(ts ...uint64) (b []byte) {
		for _, to := range ts {
			b = binary.LittleEndian.AppendUint64(b, base+to)
		}
		return b
	}
	// lea at +5: 0x1000 - 12. The index is extended to 64 bits after it.
	const pic = "83 ff 02 77 20 48 8d 15 f4 0f 00 00 89 ff 48 63 04 ba 48 01 d0 ff e0 90" + cases
	for _, tt := range []struct {
		name, code string
		table      []byte
		want       []uint64 // offsets
	}{
		{"offsets, gcc", pic, rel(0x18, 0x1e, 0x24), []uint64{0x18, 0x1e, 0x24}},
		{"offsets, notrack", "83 ff 02 77 20 48 8d 15 f4 0f 00 00 89 ff 48 63 04 ba 48 01 d0 3e ff e0" + cases, rel(0x24, 0x18, 0x18), []uint64{0x18, 0x24}},
		{"offsets, clang: add the other way", "89 f8 83 ff 02 77 20 48 8d 0d f2 0f 00 00 48 63 04 81 48 03 c1 ff e0 90" + cases, rel(0x18, 0x1e, 0x24), []uint64{0x18, 0x1e, 0x24}},
		{"jae", "83 ff 03 73 20 48 8d 15 f4 0f 00 00 89 ff 48 63 04 ba 48 01 d0 ff e0 90" + cases, rel(0x18, 0x1e, 0x24), []uint64{0x18, 0x1e, 0x24}},
		{"addresses, index copied", "83 ff 02 77 20 89 f8 ff 24 c5 00 10 00 81 90 90 90 90 90 90 90 90 90 90" + cases, abs(0x18, 0x1e, 0x24), []uint64{0x18, 0x1e, 0x24}},
		{"copied the other way", "83 ff 02 77 20 8b c7 ff 24 c5 00 10 00 81 90 90 90 90 90 90 90 90 90 90" + cases, abs(0x18, 0x1e, 0x24), []uint64{0x18, 0x1e, 0x24}},
		{"addresses, the table's loaded, as by Go", "48 83 ff 03 73 20 48 8d 05 f3 0f 00 00 ff 24 f8 90 90 90 90 90 90 90 90" + cases, abs(0x18, 0x1e, 0x24), []uint64{0x18, 0x1e, 0x24}},
		{"the table's address is not loaded here", "48 83 ff 03 73 20 90 90 90 90 90 90 90 ff 24 f8 90 90 90 90 90 90 90 90" + cases, abs(0x18, 0x1e, 0x24), nil},
		{"16 bits copied", "83 ff 02 77 20 66 89 f8 ff 24 c5 00 10 00 81 90 90 90 90 90 90 90 90 90" + cases, abs(0x18, 0x1e, 0x24), nil},
		{"another register compared", "83 fe 02 77 20 89 f8 ff 24 c5 00 10 00 81 90 90 90 90 90 90 90 90 90 90" + cases, abs(0x18, 0x1e, 0x24), nil},
		{"addresses, index compared", "8b 07 83 f8 02 77 20 ff 24 c5 00 10 00 81 90 90 90 90 90 90 90 90 90 90" + cases, abs(0x1e, 0x18, 0x24), []uint64{0x18, 0x1e, 0x24}},
		{"its upper half is anything", "48 8b 07 83 f8 02 77 20 ff 24 c5 00 10 00 81 90 90 90 90 90 90 90 90 90" + cases, abs(0x1e, 0x18, 0x24), nil},
		{"all of it compared", "48 8b 07 48 83 f8 02 77 20 ff 24 c5 00 10 00 81 90 90 90 90 90 90 90 90" + cases, abs(0x1e, 0x18, 0x24), []uint64{0x18, 0x1e, 0x24}},
		{"eax compared in the short form", "8b 07 3d 02 00 00 00 77 20 ff 24 c5 00 10 00 81 90 90 90 90 90 90 90 90" + cases, abs(0x18, 0x1e, 0x24), []uint64{0x18, 0x1e, 0x24}},
		{"masked", "83 e0 01 ff 24 c5 00 10 00 81 90 90 90 90 90 90 90 90 90 90 90 90 90 90" + cases, abs(0x18, 0x1e), []uint64{0x18, 0x1e}},
		{"a byte compared", "40 80 ff 02 77 20 40 0f b6 ff ff 24 fd 00 10 00 81 90 90 90 90 90 90 90" + cases, abs(0x18, 0x1e, 0x24), []uint64{0x18, 0x1e, 0x24}},
		{"another byte compared", "80 ff 02 77 20 40 0f b6 ff ff 24 fd 00 10 00 81 90 90 90 90 90 90 90 90" + cases, abs(0x18, 0x1e, 0x24), nil},
		{"no comparison", "90 90 90 90 90 48 8d 15 f4 0f 00 00 89 ff 48 63 04 ba 48 01 d0 ff e0 90" + cases, rel(0x18, 0x1e, 0x24), nil},
		{"signed comparison", "83 ff 02 7f 20 48 8d 15 f4 0f 00 00 89 ff 48 63 04 ba 48 01 d0 ff e0 90" + cases, rel(0x18, 0x1e, 0x24), nil},
		{"the index is not wide", "83 ff 02 77 20 48 8d 15 f4 0f 00 00 48 63 04 ba 48 01 d0 ff e0 90 90 90" + cases, rel(0x18, 0x1e, 0x24), nil},
		{"the index is changed", "83 ff 02 77 20 48 8d 15 f4 0f 00 00 ff c7 48 63 04 ba 48 01 d0 ff e0 90" + cases, rel(0x18, 0x1e, 0x24), nil},
		{"the flags are others'", "83 ff 02 31 c0 77 20 48 8d 15 f2 0f 00 00 89 ff 48 63 04 ba 48 01 d0 ff e0" + cases[3:], rel(0x18, 0x1e, 0x24), nil},
		{"another's address added", "83 ff 02 77 20 48 8d 15 f4 0f 00 00 89 ff 48 63 04 ba 48 01 c8 ff e0 90" + cases, rel(0x18, 0x1e, 0x24), nil},
		{"the table's address is changed", "83 ff 02 77 20 48 8d 15 f4 0f 00 00 89 fa 48 63 04 ba 48 01 d0 ff e0 90" + cases, rel(0x18, 0x1e, 0x24), nil},
		{"a call in between", "83 ff 02 77 20 48 8d 15 f4 0f 00 00 89 ff ff d1 48 63 04 ba 48 01 d0 ff e0" + cases[3:], rel(0x18, 0x1e, 0x24), nil},
		{"a path comes in between", "83 ff 02 77 07 48 8d 15 f4 0f 00 00 89 ff 48 63 04 ba 48 01 d0 ff e0 90" + cases, rel(0x18, 0x1e, 0x24), nil},
		{"an entry inside an instruction", pic, rel(0x18, 0x06, 0x24), nil},
		{"an entry outside", pic, rel(0x18, 0x1000, 0x24), nil},
		{"the table is cut off", pic, rel(0x18, 0x1e), nil},
		{"too many entries", "89 ff 81 ff 00 10 00 00 77 20 48 8d 15 ef 0f 00 00 48 63 04 ba 48 01 d0 ff e0" + cases, rel(0x18), nil},
		{"a tail call", "83 ff 02 77 20 ff e0", rel(0x18), nil},
	} {
		f := Analyze(Input{Addr: base, Code: code(t, tt.code), Read: func(addr uint64, n int) []byte {
			off := addr - tableAt
			if off > uint64(len(tt.table)) || n > len(tt.table)-int(off) {
				return nil
			}
			return tt.table[off:][:n]
		}})
		if len(f.IndirectJumps()) != 1 {
			t.Errorf("%s: %d indirect jumps, want 1", tt.name, len(f.IndirectJumps()))
			continue
		}
		var got []uint64
		for _, a := range f.IndirectJumps()[0].Targets {
			got = append(got, a-base)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %#x, want %#x", tt.name, got, tt.want)
		}
	}
	// A case label after a region's first byte is known, so the region is rejected.
	f := Analyze(Input{Addr: base, Code: code(t, pic), Read: func(uint64, int) []byte { return rel(0x18, 0x1e, 0x24) }})
	for off, want := range map[int]string{0x18: "ok 5", 0x1d: "jump_into_region", 0x1e: "ok 5", 0x23: "jump_into_region"} {
		if got := verdict(f, off, Ours); got != want {
			t.Errorf("region at %#x: got %q, want %q", off, got, want)
		}
	}
	// Without the table the jump's targets are unknown, and nothing leads to the
	// cases.
	f = Analyze(Input{Addr: base, Code: code(t, pic)})
	for off, want := range map[int]string{5: "indirect_jump", 0x1d: "unreached"} {
		if got := verdict(f, off, Ours); got != want {
			t.Errorf("without the table, at %#x: got %q, want %q", off, got, want)
		}
	}
	if got := verdict(f, 0x1d, KernelThunks); got != "ok 6 @1" {
		t.Errorf("by the rules of a kernel with thunks: got %q", got)
	}
}
