package x86

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// at is where the tables below put their instruction, stack its stack.
const (
	at    = 0xffffffff81000100
	stack = 0xffff888000001000
)

// words64 is memory of 64-bit words by address.
type words64 map[uint64]uint64

var errNoWord = errors.New("no such word")

func (w words64) Read(addr uint64, p []byte) error {
	v, ok := w[addr]
	if !ok {
		return errNoWord
	}
	for k := range p {
		p[k] = byte(v >> (8 * k))
	}
	return nil
}

func (w words64) Write(addr uint64, p []byte) error {
	v, ok := w[addr]
	if !ok {
		return errNoWord
	}
	for k := range p {
		v = v&^(0xff<<(8*k)) | uint64(p[k])<<(8*k)
	}
	w[addr] = v
	return nil
}

// TestEmulateBranches has the cases that Linux 6.12 gets wrong, and their
// neighbours.
func TestEmulateBranches(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		regs       Regs // before; RSP is stack when 0
		mem        words64
		rip        uint64 // after
		want       Regs   // after, RIP left out; RSP is stack when 0
		pushed     uint64 // at stack-8
	}{
		{name: "loop, rcx 0", code: "e210", rip: at + 0x12, want: Regs{RCX: 1<<64 - 1}},
		{name: "loop, rcx 1", code: "e210", regs: Regs{RCX: 1}, rip: at + 2},
		{name: "loop, rcx 2", code: "e210", regs: Regs{RCX: 2}, rip: at + 0x12, want: Regs{RCX: 1}},
		{name: "loop backwards", code: "e2fe", regs: Regs{RCX: 2}, rip: at, want: Regs{RCX: 1}},
		{name: "loop, ecx 0", code: "67e210", regs: Regs{RCX: 5 << 32}, rip: at + 0x13, want: Regs{RCX: 0xffffffff}},
		{name: "loop, ecx 1: upper half cleared, not taken", code: "67e210", regs: Regs{RCX: 5<<32 | 1}, rip: at + 3},
		{name: "loop, ecx 2", code: "67e210", regs: Regs{RCX: 5<<32 | 2}, rip: at + 0x13, want: Regs{RCX: 1}},
		{name: "loope, zf", code: "e110", regs: Regs{RCX: 2, RFLAGS: FlagZF}, rip: at + 0x12, want: Regs{RCX: 1, RFLAGS: FlagZF}},
		{name: "loope, no zf", code: "e110", regs: Regs{RCX: 2}, rip: at + 2, want: Regs{RCX: 1}},
		{name: "loopne, zf", code: "e010", regs: Regs{RCX: 2, RFLAGS: FlagZF}, rip: at + 2, want: Regs{RCX: 1, RFLAGS: FlagZF}},
		{name: "loopne, no zf", code: "e010", regs: Regs{RCX: 2}, rip: at + 0x12, want: Regs{RCX: 1}},
		{name: "jrcxz, rcx 0", code: "e310", rip: at + 0x12},
		{name: "jrcxz, only the upper half", code: "e310", regs: Regs{RCX: 1 << 32}, rip: at + 2, want: Regs{RCX: 1 << 32}},
		{name: "jecxz, only the upper half: rcx kept", code: "67e310", regs: Regs{RCX: 1 << 32}, rip: at + 0x13, want: Regs{RCX: 1 << 32}},

		{name: "ret", code: "c3", mem: words64{stack: 0x1234}, rip: 0x1234, want: Regs{RSP: stack + 8}},
		{name: "ret 8", code: "c20800", mem: words64{stack: 0x1234}, rip: 0x1234, want: Regs{RSP: stack + 16}},
		{name: "ret 0xffff is unsigned", code: "c2ffff", mem: words64{stack: 0x1234}, rip: 0x1234, want: Regs{RSP: stack + 8 + 0xffff}},

		{name: "call", code: "e8fb000000", mem: words64{stack - 8: 0}, rip: at + 0x100, want: Regs{RSP: stack - 8}, pushed: at + 5},
		{name: "rex.w call", code: "48e8fa000000", mem: words64{stack - 8: 0}, rip: at + 0x100, want: Regs{RSP: stack - 8}, pushed: at + 6},
		{name: "data16 rex.w call", code: "6648e8f9000000", mem: words64{stack - 8: 0}, rip: at + 0x100, want: Regs{RSP: stack - 8}, pushed: at + 7},
		{name: "call, backwards", code: "e8fbffffff", mem: words64{stack - 8: 0}, rip: at, want: Regs{RSP: stack - 8}, pushed: at + 5},
		{name: "call *rsp: target before the push", code: "ffd4", mem: words64{stack - 8: 0}, rip: stack, want: Regs{RSP: stack - 8}, pushed: at + 2},
		{name: "call *8(rsp): address before the push", code: "ff542408", mem: words64{stack - 8: 0, stack + 8: 0x5678}, rip: 0x5678, want: Regs{RSP: stack - 8}, pushed: at + 4},
		{name: "call *rip", code: "ff15fa000000", mem: words64{stack - 8: 0, at + 0x100: 0x5678}, rip: 0x5678, want: Regs{RSP: stack - 8}, pushed: at + 6},
		{name: "jmp *table(,rax,8)", code: "ff24c500200000", regs: Regs{RAX: 3}, mem: words64{0x2018: 0x5678}, rip: 0x5678, want: Regs{RAX: 3}},
		{name: "jmp *(eax)", code: "67ff20", regs: Regs{RAX: 7<<32 | 0x3000}, mem: words64{0x3000: 0x5678}, rip: 0x5678, want: Regs{RAX: 7<<32 | 0x3000}},
		{name: "jmp", code: "e9fb000000", rip: at + 0x100},
		{name: "jmp, ignored segment", code: "2eeb00", rip: at + 3},
	} {
		i := mustDecode(t, tt.code)
		r, want := tt.regs, tt.want
		if r.RSP == 0 {
			r.RSP = stack
		}
		if want.RSP == 0 {
			want.RSP = stack
		}
		r.RIP, want.RIP = at+1, tt.rip // as a handler sees it, after the int3
		if err := i.Emulate(at, &r, tt.mem); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if r != want {
			t.Errorf("%s:\ngot  %+x\nwant %+x", tt.name, r, want)
		}
		if got := tt.mem[stack-8]; got != tt.pushed {
			t.Errorf("%s: pushed %#x, want %#x", tt.name, got, tt.pushed)
		}
	}
}

// TestEmulateConditions tests all 16 conditions against all flags.
func TestEmulateConditions(t *testing.T) {
	taken := func(cc uint8, f uint64) bool { // SDM Vol. 1, table B-1
		of, cf, zf, sf, pf := f&FlagOF != 0, f&FlagCF != 0, f&FlagZF != 0, f&FlagSF != 0, f&FlagPF != 0
		return [16]bool{of, !of, cf, !cf, zf, !zf, cf || zf, !(cf || zf), sf, !sf, pf, !pf, sf != of, sf == of, zf || sf != of, !zf && sf == of}[cc]
	}
	for cc := range uint8(16) {
		short, err := Decode([]byte{0x70 | cc, 0x10})
		if err != nil {
			t.Fatal(err)
		}
		near, err := Decode([]byte{0x0f, 0x80 | cc, 0x10, 0, 0, 0})
		if err != nil {
			t.Fatal(err)
		}
		for bits := range uint64(64) {
			f := bits&1*FlagCF | bits>>1&1*FlagPF | bits>>2&1*FlagAF | bits>>3&1*FlagZF | bits>>4&1*FlagSF | bits>>5&1*FlagOF
			for _, i := range []Inst{short, near} {
				r := Regs{RFLAGS: f}
				want := uint64(at) + uint64(i.Len)
				if taken(cc, f) {
					want += 0x10
				}
				if err := i.Emulate(at, &r, nil); err != nil || r.RIP != want || r.RFLAGS != f {
					t.Errorf("%x, flags %#x: got %#x, %v; want %#x", i.Bytes(), f, r.RIP, err, want)
				}
			}
		}
	}
}

// TestEmulatePrivilege has cli, sti, pushf and popf at every CPL and IOPL.
func TestEmulatePrivilege(t *testing.T) {
	const iopl3 = FlagIOPL
	const all = ^uint64(0)
	for _, tt := range []struct {
		name, code   string
		cpl          uint8
		flags, value uint64 // before, and on the stack
		want, stored uint64 // after, and on the stack
		err          error
	}{
		{"cli", "fa", 0, FlagIF | FlagCF, 0, FlagCF, 0, nil},
		{"sti", "fb", 0, FlagCF, 0, FlagIF | FlagCF, 0, nil},
		{"cli, user, iopl 3", "fa", 3, FlagIF | iopl3, 0, iopl3, 0, nil},
		{"sti, user, iopl 3", "fb", 3, iopl3, 0, FlagIF | iopl3, 0, nil},
		{"cli, user, iopl 2", "fa", 3, FlagIF | 2<<12, 0, FlagIF | 2<<12, 0, ErrCannotEmulate},
		{"cli, user", "fa", 3, FlagIF, 0, FlagIF, 0, ErrCannotEmulate},
		{"sti, user", "fb", 3, 0, 0, 0, 0, ErrCannotEmulate},

		{"pushf, if set", "9c", 0, FlagIF | FlagZF | Flag1, 0, FlagIF | FlagZF | Flag1, FlagIF | FlagZF | Flag1, nil},
		{"pushf, if clear", "9c", 0, FlagZF | Flag1, 0, FlagZF | Flag1, FlagZF | Flag1, nil},
		{"pushf stores neither rf nor vm; rf goes", "9c", 0, FlagRF | FlagVM | FlagID, 0, FlagVM | FlagID, FlagID, nil},
		{"pushf, user", "9c", 3, FlagIF | iopl3, 0, FlagIF | iopl3, FlagIF | iopl3, nil},

		{"popf, everything set", "9d", 0, 0, all, 0x3f7fd5 &^ (Flag1 | FlagRF | FlagVM | FlagVIF | FlagVIP | 1<<15), 0, nil},
		{"popf, nothing set", "9d", 0, all, 0, all &^ (FlagsStatus | FlagTF | FlagIF | FlagDF | FlagIOPL | FlagNT | FlagAC | FlagID | FlagRF), 0, nil},
		{"popf, user, iopl 0: if and iopl stay", "9d", 3, FlagIF, iopl3 | FlagCF, FlagIF | FlagCF, 0, nil},
		{"popf, user, iopl 3: if changes, iopl stays", "9d", 3, FlagIF | iopl3, FlagCF, iopl3 | FlagCF, 0, nil},
		{"popfw: upper half stays", "669d", 0, FlagAC | FlagID | FlagIF, FlagCF, FlagAC | FlagID | FlagCF, 0, nil},
	} {
		i := mustDecode(t, tt.code)
		i.CPL = tt.cpl
		r := Regs{RSP: stack, RFLAGS: tt.flags}
		m := words64{stack: tt.value, stack - 8: 0}
		err := i.Emulate(at, &r, m)
		if !errors.Is(err, tt.err) || r.RFLAGS != tt.want {
			t.Errorf("%s: got flags %#x, %v; want %#x, %v", tt.name, r.RFLAGS, err, tt.want, tt.err)
		}
		if m[stack-8] != tt.stored {
			t.Errorf("%s: stored %#x, want %#x", tt.name, m[stack-8], tt.stored)
		}
		if err == nil && r.RIP != at+uint64(i.Len) {
			t.Errorf("%s: RIP %#x", tt.name, r.RIP)
		}
	}
}

// TestEmulateFaults: nothing has changed when the CPU would fault, or memory
// fails.
func TestEmulateFaults(t *testing.T) {
	const hole = 1 << 47 // the first address that is not canonical
	const wide = 1 << 56 // and with 5-level paging
	for _, tt := range []struct {
		name, code string
		regs       Regs
		mem        words64
		want       error
	}{
		{"ret to a bad address", "c3", Regs{RSP: stack}, words64{stack: hole}, ErrCannotEmulate},
		{"ret from a bad stack", "c3", Regs{RSP: wide}, words64{wide: 0}, ErrCannotEmulate},
		{"ret, stack half in the hole", "c3", Regs{RSP: wide - 4}, words64{wide - 4: 0}, ErrCannotEmulate},
		{"ret, no memory", "c3", Regs{RSP: stack}, words64{}, errNoWord},
		{"push to a bad stack", "55", Regs{RSP: wide + 16}, words64{wide + 8: 0}, ErrCannotEmulate},
		{"push to a stack of 5 levels", "55", Regs{RSP: 0xffa0_0000_0000_1000}, words64{0xffa0_0000_0000_0ff8: 0}, nil},
		{"push, no memory", "55", Regs{RSP: stack}, words64{}, errNoWord},
		{"pop, no memory", "5d", Regs{RSP: stack}, words64{}, errNoWord},
		{"leave, no memory", "c9", Regs{RSP: stack, RBP: 8}, words64{}, errNoWord},
		{"popf, no memory", "9d", Regs{RSP: stack}, words64{}, errNoWord},
		{"pushf, no memory", "9c", Regs{RSP: stack}, words64{}, errNoWord},
		{"call, no stack", "e800000000", Regs{RSP: stack}, words64{}, errNoWord},
		{"call *rax, bad address", "ffd0", Regs{RSP: stack, RAX: hole}, words64{stack - 8: 0}, ErrCannotEmulate},
		{"call *mem, no memory", "ff10", Regs{RSP: stack, RAX: 16}, words64{stack - 8: 0}, errNoWord},
		{"call *mem, bad pointer", "ff10", Regs{RSP: stack, RAX: wide}, words64{stack - 8: 0}, ErrCannotEmulate},
		{"jmp *rax, last good", "ffe0", Regs{RAX: hole - 1}, nil, nil},
		{"jmp *rax, first bad", "ffe0", Regs{RAX: hole}, nil, ErrCannotEmulate},
		{"jmp *rax, last bad", "ffe0", Regs{RAX: 1<<64 - hole - 1}, nil, ErrCannotEmulate},
		{"jmp *rax, first good", "ffe0", Regs{RAX: 1<<64 - hole}, nil, nil},
		{"lock nop", "f090", Regs{}, nil, ErrCannotEmulate},
		{"unknown", "0fa2", Regs{}, nil, ErrCannotEmulate},
	} {
		i := mustDecode(t, tt.code)
		r := tt.regs
		err := i.Emulate(at, &r, tt.mem)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		if err != nil && r != tt.regs {
			t.Errorf("%s: state %+x, was %+x", tt.name, r, tt.regs)
		}
		var merr *MemoryError
		if isMemory := errors.As(err, &merr); isMemory != (tt.want == errNoWord) {
			t.Errorf("%s: error type of %v", tt.name, err)
		}
	}
	for _, cpl := range []uint8{0, 3} { // alignment counts for user code with AC
		for _, f := range []uint64{0, FlagAC} {
			for _, sp := range []uint64{stack, stack + 4} {
				i := mustDecode(t, "55")
				i.CPL = cpl
				err := i.Emulate(at, &Regs{RSP: sp, RFLAGS: f}, words64{sp - 8: 0})
				if want := cpl == 3 && f != 0 && sp != stack; (err == ErrCannotEmulate) != want {
					t.Errorf("push at CPL %d, flags %#x, stack %#x: got %v", cpl, f, sp, err)
				}
			}
		}
	}
	i := mustDecode(t, "55")
	err := i.Emulate(at, &Regs{RSP: stack}, words64{})
	const text = "x86: write 8 bytes at 0xffff888000000ff8: no such word"
	if err == nil || err.Error() != text {
		t.Errorf("got %q, want %q", err, text)
	}
}

// TestEmulateData: which instructions only load or store, and what happens if the processor would not do that.
func TestEmulateData(t *testing.T) {
	const hole, wide = 1 << 47, 1 << 56
	for _, tt := range []struct {
		name, code string
		regs       Regs
		mem        words64
		want       error
	}{
		{"mov", "488b07", Regs{RDI: 16}, words64{16: 5}, nil},
		{"no memory", "488b07", Regs{RDI: 16}, words64{}, errNoWord},
		{"at an address of 5 levels", "488b07", Regs{RDI: hole}, words64{hole: 5}, nil},
		{"at a bad address", "488b07", Regs{RDI: wide}, words64{wide: 5}, ErrCannotEmulate},
		{"half at a bad address", "488b07", Regs{RDI: wide - 4}, words64{wide - 4: 5}, ErrCannotEmulate},
		{"not aligned, with AC", "488b07", Regs{RDI: 17, RFLAGS: FlagAC}, words64{17: 5}, ErrCannotEmulate},
		{"not aligned", "488b07", Regs{RDI: 17}, words64{17: 5}, nil},
		{"cmovne that does not move, no memory", "480f4507", Regs{RDI: 16, RFLAGS: FlagZF}, words64{}, errNoWord},
		{"a segment", "64488b07", Regs{RDI: 16}, words64{16: 5}, ErrCannotEmulate},
		{"a short address", "67488b07", Regs{RDI: 16}, words64{16: 5}, ErrCannotEmulate},
		{"registers", "488bc7", Regs{}, nil, ErrCannotEmulate},
		{"a store", "488907", Regs{RAX: 5, RDI: 16}, words64{16: 1}, nil},
		{"a store, no memory", "488907", Regs{RDI: 16}, words64{}, errNoWord},
		{"a store of a number", "48c70705000000", Regs{RAX: 5, RDI: 16}, words64{16: 1}, nil},
		{"a store at a bad address", "488907", Regs{RDI: wide}, words64{wide: 5}, ErrCannotEmulate},
		{"add to memory", "480107", Regs{RDI: 16}, words64{16: 5}, ErrCannotEmulate},
		{"add a number to memory", "48830701", Regs{RDI: 16}, words64{16: 5}, ErrCannotEmulate},
		{"not", "48f717", Regs{RDI: 16}, words64{16: 5}, ErrCannotEmulate},
		{"inc", "48ff07", Regs{RDI: 16}, words64{16: 5}, ErrCannotEmulate},
		{"push", "ff37", Regs{RDI: 16, RSP: 32}, words64{16: 5, 24: 0}, ErrCannotEmulate},
		{"lock", "f0488b07", Regs{RDI: 16}, words64{16: 5}, ErrCannotEmulate},
		{"repeated", "f3488b07", Regs{RDI: 16}, words64{16: 5}, ErrCannotEmulate},
		{"lea", "488d07", Regs{RDI: 16}, words64{16: 5}, ErrCannotEmulate},
		{"xchg", "488707", Regs{RDI: 16}, words64{16: 5}, ErrCannotEmulate},
	} {
		i := mustDecode(t, tt.code)
		i.CPL = 3
		r := tt.regs
		err := i.EmulateData(at, &r, tt.mem)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		if err != nil && r != tt.regs {
			t.Errorf("%s: state %+x, was %+x", tt.name, r, tt.regs)
		}
		if err == nil && (r.RAX != 5 || tt.mem[tt.regs.RDI] != 5 || r.RIP != at+uint64(i.Len)) {
			t.Errorf("%s: state %+x", tt.name, r)
		}
		b, _ := hex.DecodeString(tt.code)
		if p := Analyze(b, at, Options{CPL: 3}); (p.Data != NoData) != (tt.want != ErrCannotEmulate || strings.Contains(tt.name, "ad address") || strings.Contains(tt.name, "with AC")) || p.Data != NoData && p.Kind != Boost {
			t.Errorf("%s: %+v", tt.name, p)
		}
	}
}
