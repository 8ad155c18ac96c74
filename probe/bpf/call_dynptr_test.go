package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// onlyProgram loads the only program of a section.
func onlyProgram(t *testing.T, file, section string) (*Collection, *VM) {
	t.Helper()
	o, err := LoadObject(readObject(t, file), Selection{Section: section})
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.Load(2, Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	p := c.Programs[0].Program
	for _, w := range p.Warnings() {
		t.Error(&w)
	}
	return c, NewVM(p, 0)
}

// TestDynptr reads and writes memory through dynptrs, with Linux's results.
func TestDynptr(t *testing.T) {
	c, v := onlyProgram(t, "dynptr.o", "kprobe/memory")
	if r0, err := v.Run(regsContext(x86.Regs{}), NoEnv{}); r0 != 0 || err != nil {
		t.Fatal(r0, err)
	}
	var got []int64
	for i := range 16 {
		got = append(got, int64(globalWord(t, c, ".bss", 8*i)))
	}
	want := []int64{0, 16, 0, 1, -errTooBig, 0, 0, 0, 6, '5', -1, -errRange, 0, -errInval, 1 | (1<<32-errInval)<<1&(1<<32-1), -errInval}
	if !slices.Equal(got, want) {
		t.Errorf("%d, want %d", got, want)
	}
	if m := c.Maps[".data"].valueAt(0, 0); string(m[:16]) != "01XY!56789abcdef" {
		t.Errorf("memory %q", m[:16])
	}
}

// TestDynptrRecords submits, discards and forgets records.
func TestDynptrRecords(t *testing.T) {
	c, v := onlyProgram(t, "dynptr.o", "kprobe/record")
	for i := range uint64(8) {
		if r0, err := v.Run(regsContext(x86.Regs{RDI: i}), NoEnv{}); r0 != 0 || err != nil {
			t.Fatal(i, r0, err)
		}
	}
	var got []uint64
	c.Maps["ring"].Drain(func(r Record) bool {
		if len(r.Data) != 24 {
			t.Errorf("a record of %d bytes", len(r.Data))
		}
		got = append(got, le64(r.Data[8:]))
		return true
	})
	if s := c.Maps["ring"].RingStats(); fmt.Sprint(got) != "[1 3 5 7]" || s.Discarded != 4 {
		t.Errorf("%v, %+v", got, s)
	}
}

// TestDynptrForged: a dynptr that the program has made reaches no more than an address does.
func TestDynptrForged(t *testing.T) {
	_, v := onlyProgram(t, "dynptr.o", "kprobe/forged")
	stack := segPointer(segStack, 0, StackSize-64)
	for _, tt := range []struct {
		data, word, submit uint64
		r0                 int64
		code               FaultCode
	}{
		{0, 100, 0, -errInval, NoFault},
		{stack, 64, 0, 0, NoFault},
		{stack, 7, 0, -errTooBig, NoFault},
		{stack, 64 | 60<<32, 0, 0, FaultMemArg},
		{segPointer(segRecords, 0, 0), 64, 0, 0, FaultMemArg},
		{0xffff_8000_0000_0000, 64, 0, 0, FaultMemArg},
		{segPointer(segRecords, 0, 0), 64, 1, 0, FaultRecordArg},
		{stack, 64, 1, 0, FaultRecordArg},
		{^uint64(0), ^uint64(0), 0, 0, FaultMemArg},
	} {
		r0, err := v.Run(regsContext(x86.Regs{RDI: tt.data, RSI: tt.word, RDX: tt.submit}), NoEnv{})
		var f *Fault
		code := NoFault
		if errors.As(err, &f) {
			code = f.Code
		}
		if code != tt.code || code == NoFault && int64(int32(r0)) != tt.r0 {
			t.Errorf("%#x %#x: %d, %v, want %d, %v", tt.data, tt.word, int64(r0), err, tt.r0, tt.code)
		}
	}
}

// TestParseNumber reads numbers as Linux does.
func TestParseNumber(t *testing.T) {
	for _, tt := range []struct {
		text   string
		base   uint64
		value  int64
		read   int
		minus  bool
		errnum int
	}{
		{"42", 0, 42, 2, false, 0}, {"  -17x", 10, 17, 5, true, 0}, {"0x1F ", 0, 31, 4, false, 0}, {"0x1F", 16, 31, 4, false, 0}, {"1F", 16, 31, 2, false, 0},
		{"017", 0, 15, 3, false, 0}, {"0xg", 0, 0, 1, false, 0}, {"", 0, 0, 0, false, errInval}, {"-", 0, 0, 0, false, errInval}, {"z", 0, 0, 0, false, errInval},
		{"1", 7, 0, 0, false, errInval}, {"99999999999999999999", 10, 0, 0, false, errRange}, {"0x", 16, 0, 0, false, errInval},
	} {
		value, minus, read, e := parseNumber([]byte(tt.text), tt.base)
		if e != tt.errnum || e == 0 && (int64(value) != tt.value || read != tt.read || minus != tt.minus) {
			t.Errorf("%q in base %d: %d, %v, %d read, errno %d", tt.text, tt.base, value, minus, read, e)
		}
	}
}

// TestDynptrFromTooMuch: memory that a value of a map does not have is a certain mistake.
func TestDynptrFromTooMuch(t *testing.T) {
	m := testMaps(t, Heap{}, MapSpec{Name: "bytes", Kind: Array, KeySize: 4, ValueSize: 64, MaxEntries: 1})[0]
	for size, want := range map[int]string{64: "", 4096: `4096 bytes at offset 0 are outside the value of map "bytes", which has 64`} {
		p, err := New(Spec{Kind: Kprobe, Maps: []*Map{m}, Insns: mustAssemble(t, fmt.Sprintf("ldval r1, 0, 0\nmov r2, %d\nmov r3, 0\nmov r4, r10\nadd r4, -16\ncall 197\nmov r0, 0\nexit", size))})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if w := p.Warnings(); len(w) > 0 {
			got = w[0].What
		}
		if got != want {
			t.Errorf("%d bytes: warning %q, want %q", size, got, want)
		}
	}
}

// TestRecordTypesOfLinux: structures of Linux's that a file only mentions describe no records.
func TestRecordTypesOfLinux(t *testing.T) {
	b, err := btf.NewBuilder([]btf.Type{&btf.Struct{Name: "bpf_dynptr", Size: 16}, &btf.Struct{Name: "bpf_event_of_mine", Size: 24}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := btf.LoadSpecFromReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if types := recordTypes(spec); types[16] != nil || types[24] == nil {
		t.Errorf("records have the types %v", types)
	}
}

// TestNamesOfKfuncs: a warning about the call of a kfunc has its name.
func TestNamesOfKfuncs(t *testing.T) {
	p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, fmt.Sprintf("mov r1, 0\ncall %d\nmov r0, 0\nexit", HelperDynptrSize))})
	if err != nil {
		t.Fatal(err)
	}
	if w := p.Warnings(); len(w) != 1 || w[0].Text != "Call dynptr_size" {
		t.Errorf("%+v", w)
	}
}
