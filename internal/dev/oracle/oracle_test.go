package oracle

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	text  = 0x10_0000_0000
	data  = 0x10_1000_0000
	stack = 0x10_2000_0000 // its top
)

func newOracle(t testing.TB) *Oracle {
	t.Helper()
	o, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	return o
}

// program is code at text, with a page of data and one of stack, that ends behind
// its last byte.
func program(t testing.TB, code string) *Program {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(code, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return &Program{
		Segments: []Segment{
			{Addr: text, Data: b, Prot: unix.PROT_READ | unix.PROT_EXEC},
			{Addr: data, Size: 4096, Prot: unix.PROT_READ | unix.PROT_WRITE},
			{Addr: stack - 4096, Size: 4096, Prot: unix.PROT_READ | unix.PROT_WRITE},
		},
		Regs: Regs{Rip: text, Rsp: stack - 64, Rdi: data, Eflags: 0x202},
		End:  text + uint64(len(b)),
	}
}

// TestCounts: how often each instruction was begun.
func TestCounts(t *testing.T) {
	o := newOracle(t)
	for _, tt := range []struct {
		name, code string
		rax        uint64
		counts     map[uint64]uint64 // by offset
	}{
		// mov $5,%ecx; add %rcx,%rax; loop
		{"loop", "b9 05 00 00 00 48 01 c8 e2 fb", 15, map[uint64]uint64{0: 1, 5: 5, 8: 5}},
		// mov $7,%ecx; mov $1,%al; rep stosb; lea (%rcx),%rax
		{"rep", "b9 07 00 00 00 b0 01 f3 aa 48 8d 01", 0, map[uint64]uint64{0: 1, 5: 1, 7: 1, 9: 1}},
		// call 7; jmp 8; ret ... as a function
		{"call", "e8 02 00 00 00 eb 04 b0 09 c3 90 90", 9, map[uint64]uint64{0: 1, 5: 1, 7: 1, 9: 1, 11: 1}},
		// mov $3,%ecx; dec %ecx; jz +2; jmp -6
		{"jump to itself", "b9 03 00 00 00 ff c9 74 02 eb fa 90", 0, map[uint64]uint64{0: 1, 5: 3, 7: 3, 9: 2, 11: 1}},
		// pushf; pop %rax; and $0x100,%eax: the step is not seen
		{"pushf", "9c 58 25 00 01 00 00", 0, map[uint64]uint64{0: 1, 1: 1, 2: 1}},
		// fld1; fistpl (%rdi); mov (%rdi),%eax
		{"x87", "d9 e8 db 1f 8b 07", 1, map[uint64]uint64{0: 1, 2: 1, 4: 1}},
	} {
		for range 2 { // a second run finds nothing of the first
			p := program(t, tt.code)
			r, err := o.Run(p)
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			got := map[uint64]uint64{}
			for a, n := range r.Counts {
				got[a-text] = n
			}
			if r.Regs.Rax != tt.rax || !maps.Equal(got, tt.counts) {
				t.Errorf("%s: rax %d, counts %v; want %d, %v", tt.name, r.Regs.Rax, got, tt.rax, tt.counts)
			}
		}
	}
}

// TestExceptions: each is reported at its address, and the program goes on as
// the callback says.
func TestExceptions(t *testing.T) {
	o := newOracle(t)
	// mov $1<<63,%rax; xchg %rax,%rsp; nop; xchg %rax,%rsp; nop
	// Some hosts do not return to user code while its RSP is not canonical: #GP comes before the next instruction, whatever that is.
	stack, refused := uint8(vectorSS), program(t, "48 b8 00 00 00 00 00 00 00 80 48 94 90 48 94 90")
	refused.Exception = func(m *Machine, x Exception) error {
		stack = vectorGP
		m.Regs.Rsp = m.Regs.Rax // as it was
		m.Regs.Rip = text + 15
		return nil
	}
	if _, err := o.Run(refused); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, code string
		want       Exception
		rip        uint64 // offset
		resume     uint64 // offset
	}{
		{"#DE", "31 c9 f7 f1 90", Exception{Vector: vectorDE}, 2, 4},
		{"#UD", "0f 0b 90", Exception{Vector: VectorUD}, 0, 2},
		{"#BP", "cc 90", Exception{Vector: vectorBP}, 1, 1},
		{"#PF", "48 8b 04 25 00 20 00 00 90", Exception{Vector: VectorPF, Addr: 0x2000}, 0, 8},
		{"#PF, a write to text", "48 8d 05 f9 ff ff ff 88 00 90", Exception{Vector: VectorPF, Addr: text}, 7, 9},
		{"#GP", "48 b8 00 00 00 00 00 00 00 80 8b 00 90", Exception{Vector: vectorGP}, 10, 12},
		{"#GP, an instruction", "f4 90", Exception{Vector: vectorGP}, 0, 1},
		{"#SS", "48 b8 00 00 00 00 00 00 00 80 48 94 58 90", Exception{Vector: stack}, 12, 13},
		{"syscall", "0f 05 90", Exception{Vector: VectorSyscall}, 0, 2},
		// pushf; orl $0x40000,(%rsp); popf; mov 1(%rdi),%eax
		{"#AC", "9c 81 0c 24 00 00 04 00 9d 8b 47 01 90", Exception{Vector: vectorAC}, 9, 12},
	} {
		p := program(t, tt.code)
		seen := 0
		p.Exception = func(m *Machine, x Exception) error {
			seen++
			if x != tt.want || m.Regs.Rip != text+tt.rip {
				t.Errorf("%s: %+v at +%#x, want %+v at +%#x", tt.name, x, m.Regs.Rip-text, tt.want, tt.rip)
			}
			if m.Regs.Rip = text + tt.resume; tt.name == "#SS" {
				m.Regs.Rsp = m.Regs.Rax
			}
			return nil
		}
		if _, err := o.Run(p); err != nil || seen != 1 {
			t.Errorf("%s: %d exceptions, %v", tt.name, seen, err)
		}
		p = program(t, tt.code)
		if _, err := o.Run(p); !errors.Is(err, errException) {
			t.Errorf("%s without a handler: %v", tt.name, err)
		}
	}
}

// TestTrapFlag: a program that steps itself gets a trap behind each instruction
// but the one that sets the flag.
func TestTrapFlag(t *testing.T) {
	o := newOracle(t)
	// pushf; orl $0x100,(%rsp); popf; nop; pushf; pop %rax; nop; push $2; popf; nop
	p := program(t, "9c 81 0c 24 00 01 00 00 9d 90 9c 58 90 6a 02 9d 90")
	var at []uint64
	p.Exception = func(m *Machine, x Exception) error {
		if x.Vector != VectorDB {
			return errException
		}
		at = append(at, m.Regs.Rip-text)
		return nil
	}
	r, err := o.Run(p)
	if want := []uint64{10, 11, 12, 13, 15, 16}; err != nil || !slices.Equal(at, want) || r.Regs.Rax&flagTF == 0 {
		t.Errorf("traps at %d, want %d; rax %#x; %v", at, want, r.Regs.Rax, err)
	}
}

// TestPaging: a handler gives access to the page, and the instruction is begun again.
func TestPaging(t *testing.T) {
	o := newOracle(t)
	// lea -0x1100(%rsp),%rax; movq $5,(%rax); mov (%rax),%rbx
	p := program(t, "48 8d 84 24 00 ef ff ff 48 c7 00 05 00 00 00 48 8b 18")
	p.Segments = append(p.Segments, Segment{Addr: stack - 2*4096, Size: 4096, Prot: unix.PROT_NONE})
	p.Exception = func(m *Machine, x Exception) error {
		return m.Protect(x.Addr&^4095, 4096, unix.PROT_READ|unix.PROT_WRITE)
	}
	r, err := o.Run(p)
	if err != nil || r.Regs.Rbx != 5 || r.Counts[text+8] != 2 {
		t.Errorf("rbx %d, counts %v, %v", r.Regs.Rbx, r.Counts, err)
	}
}

// TestSelfModification: what was written is what runs.
func TestSelfModification(t *testing.T) {
	o := newOracle(t)
	// movb $7, 1(%rip); mov $1,%eax
	p := program(t, "c6 05 01 00 00 00 07 b8 01 00 00 00")
	p.Segments[0].Prot |= unix.PROT_WRITE
	r, err := o.Run(p)
	if err != nil || r.Regs.Rax != 7 {
		t.Errorf("rax %d, %v", r.Regs.Rax, err)
	}
	var b [4]byte
	if err := o.Read(text+8, b[:]); err != nil || binary.LittleEndian.Uint32(b[:]) != 7 {
		t.Errorf("text % x, %v", b, err)
	}
}

// TestEndless: a program that does not end is stopped, and the next one runs.
func TestEndless(t *testing.T) {
	o := newOracle(t)
	p := program(t, "eb fe 90")
	p.MaxSteps = 1000
	if r, err := o.Run(p); !errors.Is(err, ErrSteps) || r.Counts[text] != 1000 {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := o.Run(program(t, "90")); err != nil {
		t.Error(err)
	}
}

func BenchmarkStep(b *testing.B) {
	o := newOracle(b)
	p := program(b, "b9 e8 03 00 00 48 01 c8 e2 fb")
	for b.Loop() {
		if _, err := o.Run(p); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2001, "ns/step")
}
