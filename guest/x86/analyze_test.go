package x86

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// unhex decodes hexadecimal code of a test table.
func unhex(t testing.TB, code string) []byte {
	t.Helper()
	b, err := hex.DecodeString(code)
	if err != nil {
		t.Fatalf("%s: %v", code, err)
	}
	return b
}

// mustDecode decodes code, which must be exactly one instruction.
func mustDecode(t testing.TB, code string) Inst {
	t.Helper()
	b := unhex(t, code)
	i, err := Decode(b)
	if err != nil {
		t.Fatalf("%s: %v", code, err)
	}
	if int(i.Len) != len(b) {
		t.Fatalf("%s: length %d, want %d", code, i.Len, len(b))
	}
	return i
}

// TestAnalyze has the rows of the kernel's tables of emulated and refused
// instructions, what we do instead where that is better, and every class.
func TestAnalyze(t *testing.T) {
	const (
		noStep = 1 << iota
		shadow
	)
	for _, tt := range []struct {
		name, code string
		kind       Kind
		fallback   Kind
		reason     Reason
		flags      int
	}{
		// The kernel emulates these.
		{"cli", "fa", Emulate, InPlace, ReasonNone, 0},
		{"sti", "fb", Emulate, InPlace, ReasonNone, shadow},
		{"pushf", "9c", Emulate, InPlace, ReasonNone, 0},
		{"pushfw", "669c", Emulate, InPlace, ReasonNone, 0},
		{"popf", "9d", Emulate, InPlace, ReasonNone, 0},
		{"ret", "c3", Emulate, InPlace, ReasonNone, 0},
		{"rep ret", "f3c3", Emulate, InPlace, ReasonNone, 0},
		{"ret imm16", "c20800", Emulate, InPlace, ReasonNone, 0},
		{"call", "e800000000", Emulate, InPlace, ReasonNone, 0},
		{"rex.w call", "48e800000000", Emulate, InPlace, ReasonNone, 0},
		{"data16 rex.w call", "6648e800000000", Emulate, InPlace, ReasonNone, 0},
		{"bnd call", "f2e800000000", Emulate, InPlace, ReasonNone, 0},
		{"jmp rel32", "e900000000", Emulate, InPlace, ReasonNone, 0},
		{"jmp rel8", "eb00", Emulate, InPlace, ReasonNone, 0},
		{"jcc rel8", "7400", Emulate, InPlace, ReasonNone, 0},
		{"jcc rel8, hinted", "3e7400", Emulate, InPlace, ReasonNone, 0},
		{"jcc rel32", "0f8400000000", Emulate, InPlace, ReasonNone, 0},
		{"loopne", "e000", Emulate, InPlace, ReasonNone, 0},
		{"loope", "e100", Emulate, InPlace, ReasonNone, 0},
		{"loop", "e200", Emulate, InPlace, ReasonNone, 0},
		{"jrcxz", "e300", Emulate, InPlace, ReasonNone, 0},
		{"jecxz", "67e300", Emulate, InPlace, ReasonNone, 0},
		{"call *rax", "ffd0", Emulate, InPlace, ReasonNone, 0},
		{"jmp *r11", "41ffe3", Emulate, InPlace, ReasonNone, 0},
		{"notrack jmp *rax", "3effe0", Emulate, InPlace, ReasonNone, 0},

		// The kernel refuses these with EOPNOTSUPP.
		{"call *mem", "ff10", Emulate, InPlace, ReasonNone, 0},
		{"call *mem, rip", "ff1500000000", Emulate, InPlace, ReasonNone, 0},
		{"jmp *table(,rax,8)", "ff24c500000000", Emulate, InPlace, ReasonNone, 0},
		{"call *gs:mem", "65ff142500000000", InPlace, Refuse, ReasonSegmentBase, 0},
		{"data16 call *rax", "66ffd0", InPlace, Refuse, ReasonVendor, 0},
		{"data16 jmp rel16", "66e90000", InPlace, Refuse, ReasonVendor, 0},
		{"data16 ret", "66c3", InPlace, Refuse, ReasonVendor, 0},
		{"far call *mem", "ff18", InPlace, Refuse, ReasonFar, 0},
		{"far jmp *mem", "ff28", InPlace, Refuse, ReasonFar, 0},
		{"far ret", "cb", InPlace, Refuse, ReasonFar, 0},
		{"far ret imm16", "ca0800", InPlace, Refuse, ReasonFar, 0},
		{"iretq", "48cf", Refuse, Refuse, ReasonUnsupported, 0},
		{"vmcall", "0f01c1", InPlace, Refuse, ReasonHypercall, 0},
		{"vmmcall", "0f01d9", InPlace, Refuse, ReasonHypercall, 0},
		{"vmlaunch", "0f01c2", Boost, Refuse, ReasonNone, noStep},
		{"vmresume", "0f01c3", Boost, Refuse, ReasonNone, noStep},
		{"vmxoff", "0f01c4", Boost, Refuse, ReasonNone, 0},
		{"vmrun", "0f01d8", Boost, Refuse, ReasonNone, noStep},

		// Exception masking.
		{"mov ss, ax", "8ed0", Refuse, Refuse, ReasonMasksExceptions, 0},
		{"mov ss, mem", "8e10", Refuse, Refuse, ReasonMasksExceptions, 0},
		{"mov ds, ax", "8ed8", Boost, Refuse, ReasonNone, 0},
		{"pop ss is invalid in 64-bit mode", "17", Refuse, Refuse, ReasonUndecodable, 0},
		{"pop ds is invalid in 64-bit mode", "1f", Refuse, Refuse, ReasonUndecodable, 0},
		{"lss", "0fb200", Boost, Refuse, ReasonNone, 0},

		// Traps of their own.
		{"int3", "cc", Refuse, Refuse, ReasonTrap, 0},
		{"int 80", "cd80", Refuse, Refuse, ReasonTrap, 0},
		{"int1", "f1", Refuse, Refuse, ReasonTrap, 0},
		{"into is invalid", "ce", Refuse, Refuse, ReasonUndecodable, 0},
		{"ud2", "0f0b", Refuse, Refuse, ReasonTrap, 0},
		{"ud1", "0fb9c0", Refuse, Refuse, ReasonTrap, 0},
		{"ud0", "0fffc0", Refuse, Refuse, ReasonTrap, 0},
		{"ud2, almost a prefix", "0f0b6b766e", Refuse, Refuse, ReasonTrap, 0},
		{"kvm prefix", "0f0b6b766d90", Refuse, Refuse, ReasonEmulationPrefix, 0},
		{"xen prefix", "0f0b78656e0fa2", Refuse, Refuse, ReasonEmulationPrefix, 0},

		// Out of line.
		{"hlt", "f4", Boost, Refuse, ReasonNone, noStep},
		{"mwait", "0f01c9", Boost, Refuse, ReasonNone, noStep},
		{"mwaitx", "0f01fb", Boost, Refuse, ReasonNone, noStep},
		{"monitor", "0f01c8", Boost, Refuse, ReasonNone, 0},
		{"umwait", "f20faef0", Boost, Refuse, ReasonNone, noStep},
		{"tpause", "660faef0", Boost, Refuse, ReasonNone, noStep},
		{"umonitor", "f30faef0", Boost, Refuse, ReasonNone, 0},
		{"mfence", "0faef0", Boost, Refuse, ReasonNone, 0},
		{"syscall", "0f05", InPlace, Refuse, ReasonAddress, noStep},
		{"fadd mem", "d806", InPlace, Refuse, ReasonAddress, 0},
		{"fadd reg", "d8c0", InPlace, Refuse, ReasonAddress, 0},
		{"fld mem", "d906", InPlace, Refuse, ReasonAddress, 0},
		{"fnop", "d9d0", InPlace, Refuse, ReasonAddress, 0},
		{"fld1", "d9e8", InPlace, Refuse, ReasonAddress, 0},
		{"fcmovb", "dac0", InPlace, Refuse, ReasonAddress, 0},
		{"fldt", "db2e", InPlace, Refuse, ReasonAddress, 0},
		{"fucomi", "dbe8", InPlace, Refuse, ReasonAddress, 0},
		{"fstpl", "dd1e", InPlace, Refuse, ReasonAddress, 0},
		{"faddp", "dec1", InPlace, Refuse, ReasonAddress, 0},
		{"fistpll", "df3e", InPlace, Refuse, ReasonAddress, 0},
		{"fcomip", "dff0", InPlace, Refuse, ReasonAddress, 0},
		{"fldenv", "d926", Boost, Refuse, ReasonNone, 0},
		{"fldcw", "d92e", Boost, Refuse, ReasonNone, 0},
		{"fnstenv", "d936", Boost, Refuse, ReasonNone, 0},
		{"fnstcw", "d93e", Boost, Refuse, ReasonNone, 0},
		{"fnclex", "dbe2", Boost, Refuse, ReasonNone, 0},
		{"fninit", "dbe3", Boost, Refuse, ReasonNone, 0},
		{"frstor", "dd26", Boost, Refuse, ReasonNone, 0},
		{"fnsave", "dd36", Boost, Refuse, ReasonNone, 0},
		{"fnstsw mem", "dd3e", Boost, Refuse, ReasonNone, 0},
		{"fnstsw ax", "dfe0", Boost, Refuse, ReasonNone, 0},
		{"fwait", "9b", Boost, Refuse, ReasonNone, 0},
		{"fxsave", "0fae06", Boost, Refuse, ReasonNone, 0},
		{"sysretq", "480f07", Refuse, Refuse, ReasonUnsupported, 0},
		{"sysenter", "0f34", Refuse, Refuse, ReasonUnsupported, 0},
		{"rsm", "0faa", Refuse, Refuse, ReasonUnsupported, 0},
		{"getsec", "0f37", Refuse, Refuse, ReasonUnsupported, 0},
		{"enclu", "0f01d7", Refuse, Refuse, ReasonUnsupported, 0},
		{"encls", "0f01cf", Refuse, Refuse, ReasonUnsupported, 0},
		{"seamcall", "660f01cf", Boost, Refuse, ReasonNone, noStep},
		{"skinit", "0f01de", Refuse, Refuse, ReasonUnsupported, 0},
		{"uiret", "f30f01ec", Refuse, Refuse, ReasonUnsupported, 0},
		{"serialize", "0f01e8", Boost, Refuse, ReasonNone, 0},
		{"eretu", "f30f01ca", Refuse, Refuse, ReasonUnsupported, 0},
		{"clac", "0f01ca", Boost, Refuse, ReasonNone, 0},
		{"stac", "0f01cb", Boost, Refuse, ReasonNone, 0},
		{"swapgs", "0f01f8", Boost, Refuse, ReasonNone, 0},
		{"rdtscp", "0f01f9", Boost, Refuse, ReasonNone, 0},
		{"rdpid", "f30fc7f8", Boost, Refuse, ReasonNone, 0},
		{"rdfsbase", "f30faec0", Boost, Refuse, ReasonNone, 0},
		{"xbegin", "c7f800000000", Boost, Refuse, ReasonNone, noStep},
		{"xbegin rel16", "66c7f80000", Refuse, Refuse, ReasonUnsupported, 0},
		{"xabort", "c6f801", Boost, Refuse, ReasonNone, 0},
		{"cpuid", "0fa2", Boost, Refuse, ReasonNone, 0},
		{"in", "ec", Boost, Refuse, ReasonNone, 0},
		{"rep movs", "f3a4", Boost, Refuse, ReasonNone, 0},
		{"mov cr3", "0f22d8", Boost, Refuse, ReasonNone, 0},
		{"enter", "c8100000", Boost, Refuse, ReasonNone, 0},
		{"push mem", "ff30", Boost, Refuse, ReasonNone, 0},
		{"mov load", "488b07", Boost, Refuse, ReasonNone, 0},
		{"lock inc", "f0ff00", Boost, Refuse, ReasonNone, 0},
		{"div", "48f7f1", Boost, Refuse, ReasonNone, 0},
		{"shl", "48c1e004", Boost, Refuse, ReasonNone, 0},
		{"vzeroupper", "c5f877", Boost, Refuse, ReasonNone, 0},
		{"vpsubsb", "c5f9e8c1", Boost, Refuse, ReasonNone, 0},
		{"evex", "62f17c482807", Boost, Refuse, ReasonNone, 0},
		{"15 bytes", "666666662e64f04881842400000000", Refuse, Refuse, ReasonUndecodable, 0}, // cut off
		{"15 bytes, whole", "2e2e2e66654881042510000000" + "0100", Refuse, Refuse, ReasonUndecodable, 0},
		{"15 bytes, movabs", "2e2e2e2e2e48b80102030405060708", Emulate, Boost, ReasonNone, 0},
		{"rdsspq", "f3480f1ec8", Boost, Refuse, ReasonNone, 0},
		{"bndmov", "660f1a00", Boost, Refuse, ReasonNone, 0},

		// Emulated, and harmless in a slot.
		{"endbr64", "f30f1efa", Emulate, Boost, ReasonNone, 0},
		{"endbr32", "f30f1efb", Emulate, Boost, ReasonNone, 0},
		{"sealed endbr: nopl -42(%rax)", "0f1f40d6", Emulate, Boost, ReasonNone, 0},
		{"nop", "90", Emulate, Boost, ReasonNone, 0},
		{"nopw", "66900f1f", Emulate, Boost, ReasonNone, 0},
		{"pause", "f390", Emulate, Boost, ReasonNone, 0},
		{"prefetcht0", "0f1808", Emulate, Boost, ReasonNone, 0},
		{"prefetchw", "0f0d08", Emulate, Boost, ReasonNone, 0},
		{"push rbp", "55", Emulate, Boost, ReasonNone, 0},
		{"push r15", "4157", Emulate, Boost, ReasonNone, 0},
		{"push imm", "6aff", Emulate, Boost, ReasonNone, 0},
		{"pop rbp", "5d", Emulate, Boost, ReasonNone, 0},
		{"leave", "c9", Emulate, Boost, ReasonNone, 0},
		{"mov rbp, rsp", "4889e5", Emulate, Boost, ReasonNone, 0},
		{"sub rsp", "4883ec18", Emulate, Boost, ReasonNone, 0},
		{"xor eax, eax", "31c0", Emulate, Boost, ReasonNone, 0},
		{"lea rip", "488d3d00100000", Emulate, Boost, ReasonNone, 0},
		{"movzx", "0fb6c0", Emulate, Boost, ReasonNone, 0},
		{"xchg r8, rax", "4990", Emulate, Boost, ReasonNone, 0},
		{"lock xor eax, eax", "f031c0", Boost, Refuse, ReasonNone, 0},
		{"lock cli", "f0fa", InPlace, Refuse, ReasonPrefix, 0},
		{"lock jmp", "f0eb00", InPlace, Refuse, ReasonPrefix, 0},
		{"rep loope", "f3e100", InPlace, Refuse, ReasonPrefix, 0},
		{"rep jmp", "f3eb00", InPlace, Refuse, ReasonPrefix, 0},
		{"jmpabs", "d500a10807060504030201", InPlace, Refuse, ReasonAPX, 0},
		{"rex2 call *r16", "d510ffd0", InPlace, Refuse, ReasonAPX, 0},
		{"rex2 push r16", "d51050", Boost, Refuse, ReasonNone, 0},
		{"nothing", "", Refuse, Refuse, ReasonUndecodable, 0},
		{"only prefixes", "6666", Refuse, Refuse, ReasonUndecodable, 0},
	} {
		for _, cpl := range []uint8{0, 3} {
			b := unhex(t, tt.code)
			p := Analyze(b, 0x401000, Options{CPL: cpl})
			if p.Kind != tt.kind || p.Reason != tt.reason || p.Fallback != tt.fallback ||
				p.NoStep != (tt.flags&noStep != 0) || p.Shadow != (tt.flags&shadow != 0) {
				t.Errorf("%s (%s): got %v, %q, fallback %v, no step %v, shadow %v; want %v, %q, %v, flags %d",
					tt.name, tt.code, p.Kind, p.Reason, p.Fallback, p.NoStep, p.Shadow, tt.kind, tt.reason, tt.fallback, tt.flags)
			}
			if p.Reason == ReasonUndecodable {
				continue
			}
			if p.Inst.CPL != cpl || !bytes.HasPrefix(b, p.Inst.Bytes()) {
				t.Errorf("%s (%s): instruction %x at CPL %d", tt.name, tt.code, p.Inst.Bytes(), p.Inst.CPL)
			}
		}
	}
}

// TestNames holds the machine-readable names, which are part of the API.
func TestNames(t *testing.T) {
	for k, want := range map[Kind]string{Refuse: "refused", Emulate: "emulate", Boost: "boost", Step: "step", InPlace: "in_place", 99: "invalid"} {
		if got := k.String(); got != want {
			t.Errorf("Kind %d: got %q, want %q", k, got, want)
		}
	}
	for r, want := range map[Reason]string{
		ReasonNone: "", ReasonUndecodable: "undecodable", ReasonTrap: "trap_insn", ReasonEmulationPrefix: "emulation_prefix",
		ReasonMasksExceptions: "masks_exceptions", ReasonUnsupported: "unsupported_insn", ReasonFar: "far_transfer",
		ReasonVendor: "vendor_dependent", ReasonSegmentBase: "segment_base", ReasonPrefix: "reserved_prefix", ReasonAPX: "apx", 99: "invalid",
	} {
		if got := r.String(); got != want {
			t.Errorf("Reason %d: got %q, want %q", r, got, want)
		}
	}
	for c := ClassOther; c <= ClassTransaction; c++ {
		if s := c.String(); s == "" || s == "invalid" {
			t.Errorf("Class %d: got %q", c, s)
		}
	}
	if s := (ClassTransaction + 1).String(); s != "invalid" {
		t.Errorf("class beyond the last: got %q", s)
	}
}
