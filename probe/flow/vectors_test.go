package flow

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

// code turns hexadecimal with spaces into bytes.
func code(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatalf("bad hex %q: %v", s, err)
	}
	return b
}

// base is the address of the test functions.
const base = 0xffff_ffff_8100_0000

// verdict is a decision in one line: "ok LEN @BOUNDARIES" or the reason.
func verdict(f *Func, off int, r Rule) string {
	reg, no := f.Region(off, r)
	if no != nil {
		return string(no.Reason)
	}
	s := fmt.Sprintf("ok %d", reg.Len)
	if len(reg.Boundaries) > 0 {
		s += " @" + strings.Trim(fmt.Sprint(reg.Boundaries), "[]")
	}
	if reg.Call {
		s += " call"
	}
	return s
}

// TestVectors decides regions at offset 0. The rows that the behaviour digest
// calls observed are marked: they were run on a Linux 6.12 kernel.
func TestVectors(t *testing.T) {
	const nops = " 90 90 90 90 90 90 c3 90 90 90 90 90 90 90 90"
	for _, tt := range []struct {
		name, code              string
		kernel, ours, withCalls string // "" for withCalls: as ours
	}{
		// Targets (observed). The jump is after the region.
		{"jump to +0", "90 90 90 90 90 90 90 90 eb f6 c3", "ok 5 @1 2 3 4", "ok 5 @1 2 3 4", ""},
		{"jump to +1", "90 90 90 90 90 90 90 90 eb f7 c3", "jump_into_region", "jump_into_region", ""},
		{"jump to +4", "90 90 90 90 90 90 90 90 eb fa c3", "jump_into_region", "jump_into_region", ""},
		{"jump to +5", "90 90 90 90 90 90 90 90 eb fb c3", "jump_into_region", "ok 5 @1 2 3 4", ""},
		{"jump to +6", "90 90 90 90 90 90 90 90 eb fc c3", "ok 5 @1 2 3 4", "ok 5 @1 2 3 4", ""},
		{"jcc to +5", "90 90 90 90 90 90 90 90 74 fb c3", "jump_into_region", "ok 5 @1 2 3 4", ""},
		{"near jcc to +1", "90 90 90 90 90 90 90 90 0f 84 f3 ff ff ff c3", "jump_into_region", "jump_into_region", ""},
		{"loop to +4", "90 90 90 90 90 90 90 90 e2 fa c3", "jump_into_region", "jump_into_region", ""},
		{"jrcxz to +6", "90 90 90 90 90 90 90 90 e3 fc c3", "ok 5 @1 2 3 4", "ok 5 @1 2 3 4", ""},
		// Linux does not look where calls go.
		{"call to +1", "90 90 90 90 90 90 90 90 e8 f4 ff ff ff c3", "ok 5 @1 2 3 4", "jump_into_region", ""},
		{"jump into an instruction", "48 8d 05 00 00 00 00 90 90 eb f7 c3", "jump_into_region", "jump_into_region", ""},
		{"jump into its tail, behind the jump", "48 8d 05 00 00 00 00 90 90 eb fb c3", "ok 7", "jump_into_region", ""},
		// Instructions (observed).
		{"call", "e8 00 01 00 00" + nops, "call_in_region", "call_in_region", "ok 5 call"},
		{"call, not last", "90 e8 00 01 00 00" + nops, "call_in_region", "call_in_region", "ok 6 @1 call"},
		{"short call of 4 bytes is vendor dependent", "66 e8 00 01" + nops, "call_in_region", "not_movable", ""},
		{"indirect call", "ff d0" + nops, "call_in_region", "call_in_region", ""},
		{"jmp", "eb 10" + nops + nops, "branch_in_region", "not_padding", ""},
		{"near jmp", "e9 10 00 00 00" + nops + nops, "branch_in_region", "ok 5", ""},
		{"jcc", "74 10" + nops + nops, "branch_in_region", "ok 5 @2 3 4", ""},
		{"near jcc", "0f 84 10 00 00 00" + nops + nops, "branch_in_region", "ok 6", ""},
		{"loop", "e2 10" + nops + nops, "branch_in_region", "ok 5 @2 3 4", ""},
		{"int3", "90 cc" + nops, "int3_in_region", "int3_in_region", ""},
		{"int3 first", "cc" + nops, "int3_in_region", "int3_in_region", ""},
		{"cpuid", "0f a2" + nops, "not_boostable", "ok 5 @2 3 4", ""},
		{"lfence", "0f ae e8" + nops, "not_boostable", "ok 5 @3 4", ""},
		{"popcnt", "f3 48 0f b8 c0" + nops, "not_boostable", "ok 5", ""},
		{"crc32", "f2 0f 38 f0 c0" + nops, "not_boostable", "ok 5", ""},
		{"CS prefix", "2e 8b 00" + nops, "not_boostable", "ok 5 @3 4", ""},
		{"DS prefix", "3e 8b 00" + nops, "ok 5 @3 4", "ok 5 @3 4", ""},
		{"address size prefix", "67 8b 00" + nops, "not_boostable", "ok 5 @3 4", ""},
		{"ret, then nops", "c3 90 90 90 90 90", "ok 5 @1 2 3 4", "ok 5 @1 2 3 4", ""},
		{"ret imm16", "c2 08 00" + nops, "ok 5 @3 4", "not_padding", ""},
		{"ret, then int3 padding", "c3 cc cc cc cc cc", "int3_in_region", "ok 5 @1 2 3 4", ""},
		{"ret, int3, then code", "c3 cc 90 90 90 90 90", "int3_in_region", "ok 5 @1 2 3 4", ""},
		{"ret, padding, then code", "c3 90 90 90 90 90 55", "ok 5 @1 2 3 4", "not_padding", ""},
		{"ret, a pause", "c3 f3 90 90 90 90 90", "ok 5 @1 3 4", "not_padding", ""},
		{"ret, long nops", "c3 66 2e 0f 1f 84 00 00 00 00 00 0f 1f 40 00", "ok 11 @1", "ok 11 @1", ""},
		{"ret, data", "c3 88 77 66 55 44", "undecodable", "not_padding", ""},
		{"ret, a constant that looks like padding", "8b 05 01 00 00 00 c3 cc cc cc cc", "ok 6", "ok 6", ""},
		{"pop, ret, int3 padding", "5d c3 cc cc cc cc", "int3_in_region", "ok 5 @1 2 3 4", ""},
		{"jmp, int3 padding", "eb 7f cc cc cc cc", "branch_in_region", "ok 5 @2 3 4", ""},
		{"jmp through a register, int3 padding", "ff e0 cc cc cc cc", "indirect_jump", "indirect_jump", ""},
		{"sti", "fb" + nops, "ok 5 @1 2 3 4", "ok 5 @1 2 3 4", ""},
		{"cli, pushf, popf", "fa 9c 9d" + nops, "ok 5 @1 2 3 4", "ok 5 @1 2 3 4", ""},
		{"push, pop", "55 5d" + nops, "ok 5 @1 2 3 4", "ok 5 @1 2 3 4", ""},
		{"lock add", "f0 01 00" + nops, "ok 5 @3 4", "ok 5 @3 4", ""},
		{"pause", "f3 90" + nops, "ok 5 @2 3 4", "ok 5 @2 3 4", ""},
		{"gs load", "65 48 8b 04 25 28 00 00 00 c3", "ok 9", "ok 9", ""},
		{"RIP-relative lea", "48 8d 05 00 00 00 00 c3", "ok 7", "ok 7", ""},
		// Further instructions.
		{"4 bytes and 15", "48 83 c0 01 2e 2e 2e 2e 2e 2e 2e 2e 2e 48 81 c0 01 00 00 00 c3", "undecodable", "undecodable", ""},
		{"4 bytes and 11", "48 83 c0 01 f0 65 48 81 04 25 28 00 00 00 01 00 00 00 c3", "ok 18 @4", "ok 18 @4", ""},
		{"int n", "cd 80" + nops, "trap_in_region", "trap_in_region", ""},
		{"ud2", "0f 0b" + nops, "trap_in_region", "trap_in_region", ""},
		{"mov ss", "8e d0" + nops, "masks_exceptions", "masks_exceptions", ""},
		{"endbr64", "f3 0f 1e fa" + nops, "endbr_in_region", "endbr_in_region", ""},
		{"iretq", "48 cf" + nops, "not_probeable", "not_movable", ""},
		{"iretq, second", "90 48 cf" + nops, "ok 5 @1 3 4", "not_movable", ""},
		{"jmp through memory first", "ff 24 c5 00 00 00 00 90", "not_probeable", "indirect_jump", ""},
		{"call through memory first", "ff 14 c5 00 00 00 00 90", "not_probeable", "call_in_region", ""},
		{"vmcall", "0f 01 c1" + nops, "not_probeable", "ok 5 @3 4", ""},
		{"15 bytes", "66 66 66 66 66 66 2e 0f 1f 84 00 00 00 00 00 c3", "not_probeable", "ok 15", ""},
		{"hlt", "f4" + nops, "not_boostable", "not_boostable", ""},
		{"syscall", "0f 05" + nops, "not_boostable", "not_boostable", ""},
		{"xbegin", "c7 f8 00 00 00 00" + nops, "ok 6", "not_movable", ""},
		{"fld", "d9 c0" + nops, "not_boostable", "not_boostable", ""},
		{"vzeroupper is a ja to Linux", "c5 f8 77" + nops, "jump_into_region", "ok 5 @3 4", ""},
		{"lock jmp", "f0 eb 10" + nops + nops, "branch_in_region", "not_movable", ""},
		{"jmp of 16 bits", "66 eb 10" + nops + nops, "branch_in_region", "not_movable", ""},
		// The shadow of sti.
		{"sti last, hlt behind", "90 90 90 90 fb f4 c3", "ok 5 @1 2 3 4", "interrupt_shadow", ""},
		{"sti last, ret behind", "90 90 90 90 fb c3", "ok 5 @1 2 3 4", "ok 5 @1 2 3 4", ""},
		// Length.
		{"4 bytes", "90 90 90 c3", "function_too_short", "function_too_short", ""},
		{"5 bytes", "90 90 90 90 c3", "ok 5 @1 2 3 4", "ok 5 @1 2 3 4", ""},
		{"6 bytes, undecodable behind", "90 90 90 90 c3 06", "undecodable", "ok 5 @1 2 3 4", ""},
		{"undecodable within", "90 90 90 06 90 90", "undecodable", "undecodable", ""},
		{"cut off", "90 90 90 48 8d 05", "undecodable", "undecodable", ""},
		// An indirect jump after the region.
		{"jmp through a register", "90 90 90 90 90 90 ff e0", "indirect_jump", "indirect_jump", ""},
		{"jmp through memory", "90 90 90 90 90 90 ff 24 c5 00 00 00 00", "indirect_jump", "indirect_jump", ""},
		{"far jmp", "90 90 90 90 90 90 48 ff 28", "indirect_jump", "indirect_jump", ""},
		{"call through a register", "90 90 90 90 90 90 ff d0 c3", "ok 5 @1 2 3 4", "ok 5 @1 2 3 4", ""},
	} {
		f := Analyze(Input{Addr: base, Code: code(t, tt.code)})
		thunks := tt.kernel
		if thunks == "indirect_jump" {
			thunks = "ok 5 @1 2 3 4"
			if f.Insts()[0].Off == 0 && f.Insts()[0].Len == 2 {
				thunks = "int3_in_region"
			}
		}
		calls := tt.withCalls
		if calls == "" {
			calls = tt.ours
		}
		for _, w := range []struct {
			r    Rule
			want string
		}{{Kernel, tt.kernel}, {KernelThunks, thunks}, {Ours, tt.ours}, {OursCalls, calls}} {
			if got := verdict(f, 0, w.r); got != w.want {
				t.Errorf("%s (%s) by %v: got %q, want %q", tt.name, tt.code, w.r, got, w.want)
			}
		}
	}
}
