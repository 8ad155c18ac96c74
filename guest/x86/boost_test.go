package x86

import (
	"strings"
	"testing"
)

// kernelBoostTwoByte are the two-byte opcodes that Linux 6.12 boosts, as the
// behaviour digest lists them: an independent copy of kernelBoost0F.
const kernelBoostTwoByte = `02 03 06 08 09 1F 20 21 22 23 31
	40 41 42 43 44 45 46 47 48 49 4A 4B 4C 4D 4E 4F
	60 61 62 63 64 65 66 67 68 69 6A 6B 6E 6F 74 75 76 77 7E 7F
	90 91 92 93 94 95 96 97 98 99 9A 9B 9C 9D 9E 9F
	A0 A1 A3 A4 A5 A8 A9 AB AC AD AF B0 B1 B2 B3 B4 B5 B6 B7 BB BC BD BE BF
	C0 C1 C8 C9 CA CB CC CD CE CF D1 D2 D3 D5 D8 D9 DB DC DD DF
	E1 E2 E5 E8 E9 EB EC ED EF F1 F2 F3 F5 F8 F9 FA FC FD FE`

// kernelRefuseOneByte are the one-byte opcodes that it never boosts.
const kernelRefuseOneByte = `62 70 71 72 73 74 75 76 77 78 79 7A 7B 7C 7D 7E 7F 9A CC CD CE D6
	D8 D9 DA DB DC DD DE DF E0 E1 E2 E3 E8 E9 EB F0 F1 F2 F3 F4`

func opcodeSet(s string) (set [256]bool) {
	for _, f := range strings.Fields(s) {
		set[hexByte(strings.ToLower(f))] = true
	}
	return set
}

// TestKernelBoostTables tests every opcode of both maps.
func TestKernelBoostTables(t *testing.T) {
	two, one := opcodeSet(kernelBoostTwoByte), opcodeSet(kernelRefuseOneByte)
	for op := range 256 {
		i := Inst{Map: Map0F, Opcode: uint8(op)}
		if got := i.KernelBoostable(); got != two[op] {
			t.Errorf("0f %02x: got %v, want %v", op, got, two[op])
		}
		// Two-byte opcodes are judged before prefixes.
		i.Prefix = PrefixCS | PrefixAddrSize
		if got := i.KernelBoostable(); got != two[op] {
			t.Errorf("2e 67 0f %02x: got %v, want %v", op, got, two[op])
		}
		for _, m := range []Map{Map0F38, Map0F3A} {
			i = Inst{Map: m, Opcode: uint8(op)}
			if i.KernelBoostable() {
				t.Errorf("map %d, %02x: got true, want false", m, op)
			}
		}
		for reg := range uint8(8) {
			want := !one[op]
			switch op {
			case 0xc0, 0xc1, 0xd0, 0xd1, 0xd2, 0xd3:
				want = reg != 6
			case 0xf6, 0xf7:
				want = reg != 1
			case 0xfe:
				want = reg == 0 || reg == 1
			case 0xff:
				want = reg == 0 || reg == 1 || reg == 4
			}
			i = Inst{Opcode: uint8(op), ModRM: reg << 3}
			if got := i.KernelBoostable(); got != want {
				t.Errorf("%02x /%d: got %v, want %v", op, reg, got, want)
			}
			for _, p := range []Prefix{PrefixCS, PrefixAddrSize} {
				i.Prefix = p
				if i.KernelBoostable() {
					t.Errorf("%02x /%d with prefix %#x: got true, want false", op, reg, p)
				}
			}
			i.Prefix = PrefixLock | PrefixRep | PrefixRepNE | PrefixDS | PrefixGS | PrefixFS | PrefixES | PrefixSS | PrefixOpSize | PrefixREXW
			if got := i.KernelBoostable(); got != want {
				t.Errorf("%02x /%d with harmless prefixes: got %v, want %v", op, reg, got, want)
			}
		}
	}
}

// TestKernelBoostable has the observed examples, by bytes.
func TestKernelBoostable(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		want       bool
	}{
		{"cpuid", "0fa2", false},
		{"lfence", "0faee8", false},
		{"popcnt", "f3480fb8c0", false},
		{"crc32", "f20f38f0c0", false},
		{"syscall", "0f05", false},
		{"ud2", "0f0b", false},
		{"prefetch", "0f1800", false},
		{"endbr64", "f30f1efa", false},
		{"jcc near", "0f8400000000", false},
		{"cmpxchg8b", "0fc70f", false},
		{"cs prefix", "2e8b00", false},
		{"ds prefix", "3e8b00", true},
		{"address size", "678b00", false},
		{"lock add", "f00100", true},
		{"pause", "f390", true},
		{"gs load", "65488b042528000000", true},
		{"rip lea", "488d0500000000", true},
		{"ret", "c3", true},
		{"ret imm16", "c20800", true},
		{"sti", "fb", true},
		{"cli", "fa", true},
		{"pushf", "9c", true},
		{"popf", "9d", true},
		{"push", "55", true},
		{"jmp *rax", "ffe0", true},
		{"call *rax", "ffd0", false},
		{"push mem", "ff30", false},
		{"call", "e800000000", false},
		{"nopl", "0f1f4000", true},
		{"vzeroupper, as if ja", "c5f877", false},
		{"vpsubsb, as if call", "c5f9e8c1", false},
		{"vmovaps", "c5f828c1", true},
	} {
		if i := mustDecode(t, tt.code); i.KernelBoostable() != tt.want {
			t.Errorf("%s (%s): got %v, want %v", tt.name, tt.code, !tt.want, tt.want)
		}
	}
}
