package bpf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// stripTypes returns an object in which symbols of some types have none.
func stripTypes(t *testing.T, b []byte, types ...elf.SymType) []byte {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.Clone(b)
	table := part(b, f.SectionByType(elf.SHT_SYMTAB))
	n := 0
	for entry := table; len(entry) >= symSize; entry = entry[symSize:] {
		for _, typ := range types {
			if elf.ST_TYPE(entry[symInfoAt]) == typ {
				entry[symInfoAt] &= 0xf0
				n++
			}
		}
	}
	if n == 0 {
		t.Fatal("no such symbols")
	}
	return b
}

// TestSymbolsWithoutType: objects whose functions, maps or variables have no type, as
// written by old compilers, work like others.
func TestSymbolsWithoutType(t *testing.T) {
	for _, file := range []string{"count.o", "subprog.o", "tails.o", "weakmap.o"} {
		want, err := LoadObject(readObject(t, file), Selection{})
		if err != nil {
			t.Fatal(err)
		}
		for _, types := range [][]elf.SymType{{elf.STT_OBJECT}, {elf.STT_FUNC}, {elf.STT_FUNC, elf.STT_OBJECT}} {
			got, err := LoadObject(stripTypes(t, readObject(t, file), types...), Selection{})
			if err != nil {
				t.Errorf("%s without %v: %v", file, types, err)
				continue
			}
			if len(got.Programs) != len(want.Programs) || len(got.Maps) != len(want.Maps) || len(got.Programs[0].insns) != len(want.Programs[0].insns) {
				t.Errorf("%s without %v: %d programs and %d maps, want %d and %d", file, types, len(got.Programs), len(got.Maps), len(want.Programs), len(want.Maps))
			}
		}
	}
}

// TestPerCPUSymbols: a variable that each CPU of the kernel has its own of is refused by its name, by the kernel's types
// or by its address, which is an offset.
func TestPerCPUSymbols(t *testing.T) {
	kernel := func(addr uint64, section string) *Kernel {
		v := &btf.Var{Name: "bpf_prog_active", Type: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}, Linkage: btf.GlobalVar}
		b, err := btf.NewBuilder([]btf.Type{&btf.Datasec{Name: section, Size: 4, Vars: []btf.VarSecinfo{{Type: v, Size: 4}}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := b.Spec()
		if err != nil {
			t.Fatal(err)
		}
		return &Kernel{Types: []*btf.Spec{spec}, Symbol: func(name string) (uint64, bool) { return addr, name == "bpf_prog_active" }}
	}
	const refusal = `"bpf_prog_active" is a variable of the kernel's that each CPU has its own of, which programs cannot reach`
	for _, c := range []struct {
		name, section string
		addr          uint64
		want          string
	}{
		{"of all", ".data", 0xffffffff82000000, ""},
		{"by type", ".data..percpu", 0xffffffff82000000, refusal},
		{"by address", ".data", 0x1f2c8, refusal},
	} {
		_, err := loadIn(t, "ksyms.o", Selection{Section: "kprobe/vfs_read", Kernel: kernel(c.addr, c.section)})
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestUnselectedValues: programs in the values of maps that no selected program uses do not matter.
func TestUnselectedValues(t *testing.T) {
	b := readObject(t, "tails.o")
	o, err := LoadObject(b, Selection{Section: "kprobe/not_in_this_kernel"})
	if err != nil || len(o.Programs) != 1 || o.Programs[0].Name != "next" {
		t.Fatal(err)
	}
	// The same where its own section is the one that is hidden, and the map is of no use: the other way round is refused.
	if _, err = LoadObject(b, Selection{Section: "kprobe/vfs_read"}); err == nil {
		t.Error("a map whose program is not selected was loaded")
	}
	// A relocation at the end of the address space, and one of a symbol that is not there.
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range f.Sections {
		if s.Name != ".rel.maps" {
			continue
		}
		for _, x := range []uint64{1<<64 - 1, 0, 8} {
			c := bytes.Clone(b)
			binary.LittleEndian.PutUint64(c[s.Offset:], x)
			_, _ = LoadObject(c, Selection{Section: "kprobe/vfs_read"})
			binary.LittleEndian.PutUint64(c[s.Offset+relInfoAt:], x)
			_, _ = LoadObject(c, Selection{Section: "kprobe/vfs_read"})
		}
	}
}

// TestLabels: labels of inline assembly are places in their function.
func TestLabels(t *testing.T) {
	o, err := LoadObject(readObject(t, "labels.o"), Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Programs) != 1 || o.Programs[0].Name != "labels" {
		t.Errorf("%+v", o.Programs)
	}
}
