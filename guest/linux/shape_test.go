package linux

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
)

// tabledKernel is a kernel of 64 functions of 16 bytes, which begin with the nop of 5 bytes,
// with tables of n entries that no symbols are around, among read-only data.
func tabledKernel(t testing.TB, n int, names ...string) *Kernel {
	t.Helper()
	const data = kerneltest.Base + 0x10_0000
	d := []byte("Linux version 6.1.0-test (gcc)\n\x00")
	at := func() uint64 { return data + uint64(len(d)) }
	rel := func(to uint64) { d = binary.LittleEndian.AppendUint32(d, uint32(to-at())) }
	word := func(v uint64) { d = binary.LittleEndian.AppendUint64(d, v) }
	fn := func(i int) uint64 { return kerneltest.Base + uint64(i)*16 }
	for i := range n {
		word(fn(i))
	}
	word(1)
	for i := range n {
		rel(fn(i))
		rel(fn(i) + 8)
		word(data - at())
	}
	word(1)
	for i := range n {
		rel(fn(i) + 8)
		rel(data)
	}
	word(1)
	for i := range n {
		word(fn(n - i)) // a table of functions
	}
	word(1)
	for i := range max(n-2, 0) {
		word(fn(i + 30))
	}
	word(1)
	text := bytes.Repeat([]byte{0x0f, 0x1f, 0x44, 0, 0, 0x90, 0x90, 0x90, 0xe8, 0, 0, 0, 0, 0x90, 0xc3, 0xcc}, 64)
	k, err := Parse(kerneltest.ELF(
		kerneltest.Section{Name: ".text", Addr: kerneltest.Base, Data: text, X: true},
		kerneltest.Section{Name: ".rodata", Addr: data, Data: d},
		kerneltest.Section{Name: "__ex_table", Addr: data + 0x10_0000, Data: make([]byte, 12)},
	))
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != 0 {
		var all []elf.Name
		for i := range 64 {
			all = append(all, elf.Name{Name: fmt.Sprintf("fn%d", i), Addr: fn(i), Func: true})
		}
		for i, name := range names {
			all[i+31].Name = name
		}
		k.mem.SetNames(all)
		k.nameless = false
	}
	return k
}

// TestShapes: tables are found without symbols, and what a kernel does not have is not
// missed.
func TestShapes(t *testing.T) {
	k := tabledKernel(t, 20, "notify_die", "register_kprobe", "ftrace_init", "jump_label_init", "static_call_init")
	for name, want := range map[string]int{mCount: 20 * 8, jumpTable: 20 * 16, staticCallSites: 20 * 8, blacklist: 18 * 8} {
		if got := k.table(name); len(got.Data) != want {
			t.Errorf("%s has %d bytes, want %d", name, len(got.Data), want)
		}
	}
	if lacks := k.missingTables(); len(lacks) != 0 {
		t.Errorf("it lacks %v", lacks)
	}
	// Too few to be sure.
	k = tabledKernel(t, 5, "notify_die", "register_kprobe", "ftrace_init", "static_call_init")
	if lacks := k.missingTables(); len(lacks) != 3 || lacks[jumpTable] != "" {
		t.Errorf("it lacks %v", lacks)
	}
	if lacks := tabledKernel(t, 5, "notify_die").missingTables(); len(lacks) != 0 {
		t.Errorf("it lacks %v", lacks)
	}
}

// TestUnknownTables: where a table was not found, nothing is probed that looks like one of
// its places.
func TestUnknownTables(t *testing.T) {
	k := tabledKernel(t, 5)
	mem := ram(t, minRAM)
	st, err := Boot(mem, k, BootOptions{RAM: minRAM})
	if err != nil {
		t.Fatal(err)
	}
	b := &booted{t: t}
	b.ram, _ = mem.Slice(0, minRAM)
	if b.View, err = NewView(k, st, b.readAt); err != nil {
		t.Fatal(err)
	}
	missing := b.MissingFeatures()
	if len(missing) != 8 || !strings.HasPrefix(missing[1], "names: ") || !slices.ContainsFunc(missing, func(s string) bool { return strings.HasPrefix(s, "static branches: ") }) {
		t.Errorf("missing: %q", missing)
	}
	for _, tt := range []struct {
		at, n int
		fixed bool
	}{{0, 1, true}, {5, 1, false}, {5, 3, false}, {5, 4, true}, {8, 1, true}, {13, 2, false}} {
		lo := b.fn(1) + guest.GVA(tt.at)
		if got := b.FixedReason(lo, lo+guest.GVA(tt.n)); (got != "") != tt.fixed {
			t.Errorf("+%d, %d bytes: %q", tt.at, tt.n, got)
		}
	}
	if got := b.Entry(b.fn(1)); got != b.fn(1)+5 {
		t.Errorf("the entry is at %v", got)
	}
	if got := b.Entry(b.fn(1) + 5); got != b.fn(1)+5 {
		t.Errorf("the entry of a function without a tracer is at %v", got)
	}
}
