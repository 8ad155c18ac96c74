package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

func readObject(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/obj", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func loadObject(t testing.TB, name string, mem Memory) *Collection {
	t.Helper()
	o, err := LoadObject(readObject(t, name), Selection{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.Load(2, mem, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func (c *Collection) find(t testing.TB, name string) LoadedProgram {
	t.Helper()
	for _, p := range c.Programs {
		if p.Name() == name {
			return p
		}
	}
	t.Fatalf("no program %s", name)
	return LoadedProgram{}
}

func u64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
func u32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

func lookup(t testing.TB, m *Map, key []byte) []uint64 {
	t.Helper()
	vals, err := m.Lookup(key)
	if err != nil {
		t.Fatal(err)
	}
	var out []uint64
	for _, v := range vals {
		out = append(out, le64(v))
	}
	return out
}

// fakeEnv is an Env with one task and a little memory.
type fakeEnv struct {
	NoEnv
	now                 uint64
	id                  uint64
	mem                 map[uint64]byte
	trace               []string
	task, owner, cgroup uint64
}

func (e *fakeEnv) Now() uint64      { return e.now }
func (e *fakeEnv) PIDTGID() uint64  { return e.id }
func (e *fakeEnv) Comm(c *[16]byte) { copy(c[:], "builtin") }
func (e *fakeEnv) Trace(msg []byte) { e.trace = append(e.trace, string(msg)) }
func (e *fakeEnv) FuncIP() uint64   { return 0x1234 }
func (e *fakeEnv) Task() uint64     { return e.task }
func (e *fakeEnv) UIDGID() uint64   { return e.owner }
func (e *fakeEnv) CgroupID() uint64 { return e.cgroup }
func (e *fakeEnv) put(at uint64, s string) {
	if e.mem == nil {
		e.mem = map[uint64]byte{}
	}
	for i := range len(s) {
		e.mem[at+uint64(i)] = s[i]
	}
}

func (e *fakeEnv) ReadKernel(addr uint64, p []byte) error {
	for i := range p {
		b, ok := e.mem[addr+uint64(i)]
		if !ok && addr>>12 != (addr+uint64(i))>>12 || !ok && i == 0 {
			return errNoGuest
		}
		p[i] = b
	}
	return nil
}

func (e *fakeEnv) ReadUser(addr uint64, p []byte) error { return e.ReadKernel(addr, p) }

func TestObjectCount(t *testing.T) {
	for _, file := range []string{"count.o", "count-v1.o"} {
		c := loadObject(t, file, Heap{})
		p := c.find(t, "count")
		if p.AttachTo != "vfs_read" || p.Kind() != Kprobe || p.Section != "kprobe/vfs_read" {
			t.Errorf("%s: %+v", file, p)
		}
		v := NewVM(p.Program, 1)
		for i := range uint64(5) {
			ctx := make([]byte, RegsSize)
			PutRegs(ctx, &x86.Regs{RDI: 40 + i/3}, 0, 0)
			if r0, err := v.Run(ctx, NoEnv{}); r0 != 0 || err != nil {
				t.Fatalf("%s: %d, %v", file, r0, err)
			}
		}
		if got := lookup(t, c.Maps["hits"], u32(0)); got[0] != 0 || got[1] != 5 {
			t.Errorf("%s: hits = %v, want 5 on vCPU 1", file, got)
		}
		if got := lookup(t, c.Maps["by_arg"], u64(40)); got[0] != 3 {
			t.Errorf("%s: by_arg[40] = %v, want 3", file, got)
		}
		if got := lookup(t, c.Maps["by_arg"], u64(41)); got[0] != 2 {
			t.Errorf("%s: by_arg[41] = %v, want 2", file, got)
		}
	}
}

func TestObjectLatency(t *testing.T) {
	c := loadObject(t, "latency.o", Heap{})
	env := &fakeEnv{id: 7<<32 | 8}
	enter, leave := NewVM(c.find(t, "enter").Program, 0), NewVM(c.find(t, "leave").Program, 1)
	ctx := make([]byte, RegsSize)
	for _, d := range []uint64{0, 1, 2, 3, 1000, 1 << 40} {
		if _, err := enter.Run(ctx, env); err != nil {
			t.Fatal(err)
		}
		env.now += d
		if _, err := leave.Run(ctx, env); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := leave.Run(ctx, env); err != nil { // without an entry
		t.Fatal(err)
	}
	h, err := c.Maps["nanoseconds"].Hist()
	if err != nil {
		t.Fatal(err)
	}
	if want := (Hist{0: 2, 1: 2, 9: 1, 40: 1}); *h != want {
		t.Errorf("histogram %v, want %v", h, want)
	}
	if lo, hi, ok := h.Range(); lo != 0 || hi != 40 || !ok || h.Total() != 6 {
		t.Errorf("range %d to %d, %v, total %d", lo, hi, ok, h.Total())
	}
}

func TestObjectRecord(t *testing.T) {
	c := loadObject(t, "record.o", Heap{})
	env := &fakeEnv{now: 12345}
	env.put(0xffff_8000_0000_1000, "name\x00")
	v := NewVM(c.find(t, "record").Program, 1)
	for _, count := range []uint64{99, 100, 4096} {
		ctx := make([]byte, RegsSize)
		PutRegs(ctx, &x86.Regs{RDI: 1, RSI: 0xffff_8000_0000_1000, RDX: count, RCX: 4, R8: 5, R9: 6}, 0, 0)
		r0, err := v.Run(ctx, env)
		if err != nil || r0 != 0 && count < 100 || r0 != 1 && count >= 100 {
			t.Fatalf("count %d: %d, %v", count, r0, err)
		}
	}
	var got []uint64
	n := c.Maps["records"].Drain(func(r Record) bool {
		if r.CPU != 1 || len(r.Data) != 96 {
			t.Errorf("record of %d bytes from vCPU %d", len(r.Data), r.CPU)
			return false
		}
		if time, name := le64(r.Data), string(r.Data[64:68]); time != 12345 || name != "name" {
			t.Errorf("time %d, name %q", time, name)
		}
		got = append(got, le64(r.Data[24:]))
		return true
	})
	if n != 2 || got[0] != 100 || got[1] != 4096 {
		t.Errorf("%d records: %v", n, got)
	}
	seen, kept := c.Maps[".bss"].valueAt(0, 0), 0
	if a, b := le64(seen), le64(seen[8:]); a+b != 5 {
		t.Errorf("seen and kept are %d and %d, want 3 and 2 %d", a, b, kept)
	}
}

func TestObjectSubprogram(t *testing.T) {
	c := loadObject(t, "subprog.o", Heap{})
	env := &fakeEnv{}
	v := NewVM(c.find(t, "walk").Program, 0)
	for _, tt := range []struct{ n, want, sum uint64 }{{0, 1, 0}, {3, 1, 35}, {11, 1<<32 - 1, 35}} {
		ctx := make([]byte, RegsSize)
		PutRegs(ctx, &x86.Regs{RDI: tt.n}, 0, 0)
		r0, err := v.Run(ctx, env)
		if err != nil || uint64(uint32(r0)) != tt.want {
			t.Fatalf("n %d: r0 %#x, %v, want %#x", tt.n, r0, err, tt.want)
		}
		if got := le64(c.Maps[".bss"].valueAt(0, 0)); got != tt.sum {
			t.Errorf("n %d: total %d, want %d", tt.n, got, tt.sum)
		}
	}
	if want := "n=0 sum=0\n|n=3 sum=35\n"; strings.Join(env.trace, "|") != want {
		t.Errorf("trace %q, want %q", env.trace, want)
	}
}

// TestObjectTypes: accesses that clang left to be relocated find the context's
// fields.
func TestObjectTypes(t *testing.T) {
	v := NewVM(loadObject(t, "core.o", Heap{}).find(t, "registers").Program, 0)
	if r0, err := v.Run(regsContext(x86.Regs{RDI: 1, RSI: 2, RAX: 3}), NoEnv{}); r0 != 10203 || err != nil {
		t.Errorf("r0 %d, %v, want 10203", r0, err)
	}
}

func regsContext(r x86.Regs) []byte {
	ctx := make([]byte, RegsSize)
	PutRegs(ctx, &r, 0, 0)
	return ctx
}

// hugeBSS makes a section without bytes in the file 1 GiB large.
func hugeBSS(t *testing.T, b []byte) []byte {
	t.Helper()
	le := binary.LittleEndian
	const typeOff, sizeOff, headerSize, nobits = 4, 32, 64, 8 // of Elf64_Shdr
	table := b[le.Uint64(b[40:]):]
	for range le.Uint16(b[60:]) {
		if le.Uint32(table[typeOff:]) == nobits {
			le.PutUint64(table[sizeOff:], 1<<30)
			return b
		}
		table = table[headerSize:]
	}
	t.Fatal("no such section")
	return nil
}

// hideTypes gives the sections of types other names.
func hideTypes(t *testing.T, b []byte) []byte {
	t.Helper()
	out := bytes.ReplaceAll(b, []byte(".BTF"), []byte(".XXX"))
	if bytes.Equal(out, b) {
		t.Fatal("no types")
	}
	return out
}

// TestClosed: programs of a collection that is closed keep none of the memory of its maps.
func TestClosed(t *testing.T) {
	o, err := LoadObject(readObject(t, "mixed.o"), Selection{Section: "kprobe/vfs_read"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.Load(2, Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for _, p := range c.Programs {
		if len(p.segs) == 0 {
			t.Errorf("%s has no maps", p.Name())
		}
		for _, s := range p.segs {
			if s.bytes != nil {
				t.Errorf("%s keeps %d bytes", p.Name(), len(s.bytes))
			}
		}
	}
}

// TestLoadSection: only the requested section is examined.
func TestLoadSection(t *testing.T) {
	mixed := readObject(t, "mixed.o")
	for _, tt := range []struct{ section, want string }{
		{"kprobe/vfs_read", ""},
		{"kretprobe/vfs_read", `section "kretprobe/vfs_read", instruction 0: "CONFIG_HZ" is extern`},
		{"kprobe/do_fork", "unknown helper send_signal (109)"},
		{"xdp", `"xdp" is not supported: the guest's kernel calls such programs and uses their results`},
		{"kprobe/nope", `no such section "kprobe/nope": it has ["kprobe/vfs_read" "kretprobe/vfs_read" "kprobe/do_fork" "tracepoint/sched/sched_switch" "xdp"]`},
	} {
		o, err := LoadObject(mixed, Selection{Section: tt.section})
		if err == nil {
			var c *Collection
			if c, err = o.Load(2, Heap{}, 0); err == nil {
				c.Close()
			}
		}
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.section, err, tt.want)
		}
	}
	if _, err := LoadObject(mixed, Selection{Section: "kprobe/nope"}); !errors.Is(err, ErrNoSection) {
		t.Error(err)
	}
	if _, err := loadIn(t, "ksyms.o", Selection{Section: "kprobe/do_fork"}); err == nil || !strings.Contains(err.Error(), `"jiffies" is extern`) {
		t.Error(err)
	}
	// Maps that others use are not made.
	if o, err := LoadObject(readObject(t, "warn.o"), Selection{Section: "kprobe/do_fork"}); err != nil || len(o.Maps) != 0 || len(o.Programs) != 1 {
		t.Error(o, err)
	}
}

// TestSet: constants have the requested values.
func TestSet(t *testing.T) {
	mixed := readObject(t, "mixed.o")
	load := func(name, value string) (*Object, error) {
		return LoadObject(mixed, Selection{Section: "kprobe/vfs_read", Set: map[string]string{name: value}})
	}
	rodata := func(o *Object) []byte {
		for _, m := range o.Maps {
			if m.Name == ".rodata" {
				return m.Contents
			}
		}
		t.Fatal("no constants")
		return nil
	}
	was, err := load("threshold", "5") // which it is
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, value string
		put         []byte
		want        string
	}{
		{"threshold", "-2", u32(0xfffffffe), ""},
		{"threshold", "0x7fffffff", u32(0x7fffffff), ""},
		{"name", "wxyz", []byte("wxyz\x00\x00\x00\x00"), ""},
		{"threshold", "0x80000000", nil, `variable "threshold" = "0x80000000": it is no signed number of 32 bits`},
		{"threshold", "x", nil, "no signed number of 32 bits"},
		{"name", "12345678", nil, "room for 7 characters and a zero"},
		{"seen", "1", nil, `variable "seen" is in .data, and only constants (.rodata) can be set`},
		{"nope", "1", nil, `no variable "nope": the file has [`},
	} {
		o, err := load(tt.name, tt.value)
		if tt.want != "" {
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s=%s: %v, want %q", tt.name, tt.value, err, tt.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s=%s: %v", tt.name, tt.value, err)
			continue
		}
		at := bytes.Index(rodata(was), []byte("abc\x00\x00\x00\x00\x00"))
		if tt.name == "threshold" {
			at = bytes.Index(rodata(was), u32(5))
		}
		want := bytes.Clone(rodata(was))
		copy(want[at:], tt.put)
		if !bytes.Equal(rodata(o), want) {
			t.Errorf("%s=%s: % x, want % x", tt.name, tt.value, rodata(o), want)
		}
	}
}

func TestObjectRefused(t *testing.T) {
	good := readObject(t, "count.o")
	renamed := func(from, to string) []byte {
		return []byte(strings.ReplaceAll(string(good), from, to))
	}
	for _, tt := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "it is not an object file"},
		{"not ELF", []byte(strings.Repeat("#!/bin/sh\n", 10)), "it is not an object file"},
		{"truncated", good[:len(good)/2], "EOF"},
		{"other section", renamed("kprobe/vfs_read", "custom/vfs_read"), "only kprobe/ and kretprobe/, ksyscall/"},
		{"section of the network", renamed("kprobe/vfs_read", "socket/vfs_read"), `"socket/vfs_read" is not supported: the guest's kernel calls such programs`},
		{"huge .bss", hugeBSS(t, readObject(t, "record.o")), "too large"},
		{"kernel type", readObject(t, "core-task.o"), "CO-RE"},
		{"kernel configuration", readObject(t, "kconfig.o"), `section "kprobe/vfs_read", instruction 1: "CONFIG_HZ" is extern and defined nowhere`},
		{"kernel configuration without types", hideTypes(t, readObject(t, "kconfig.o")), `instruction 1: "CONFIG_HZ" is extern`},
		{"kernel symbols", readObject(t, "ksyms.o"), `"bpf_prog_active" is extern and defined nowhere`},
		{"other sections", readObject(t, "mixed.o"), `"xdp" is not supported`},
		{"too large", make([]byte, MaxObjectSize+1), "larger than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, err := LoadObject(tt.file, Selection{})
			if err == nil {
				_, err = o.Load(2, Heap{}, 0)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want something about %q", err, tt.want)
			}
		})
	}
	if _, err := LoadObject(make([]byte, MaxObjectSize+1), Selection{}); !errors.Is(err, ErrObjectTooLarge) {
		t.Errorf("%v is not ErrObjectTooLarge", err)
	}
}

// TestLoadLimit: the maps of one object together have a limit too.
func TestLoadLimit(t *testing.T) {
	o := &Object{}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		o.Maps = append(o.Maps, MapSpec{Name: name, Kind: Array, KeySize: 4, ValueSize: 1 << 10, MaxEntries: 1 << 17})
	}
	if _, err := o.Load(1, Heap{}, 0); !errors.Is(err, ErrMapLimit) {
		t.Errorf("640 MiB of maps: %v", err)
	}
}

// FuzzLoadObject: any file gives an error, without panics, hangs or unbounded memory;
// objects that load are run.
func FuzzLoadObject(f *testing.F) {
	for _, name := range []string{"count.o", "latency.o", "record.o", "subprog.o", "count-v1.o", "core.o", "core-task.o", "kconfig.o", "mixed.o", "kernel.o", "typed.o", "callback.o", "syscall.o", "wide.o", "tails.o", "sizes.o", "iters.o"} {
		f.Add(readObject(f, name))
	}
	kernel := testKernel(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = LoadObject(b, Selection{Section: "kprobe/vfs_read"})
		_, _ = LoadObject(b, Selection{})
		o, err := LoadObject(b, Selection{Kernel: kernel})
		if err != nil {
			return
		}
		for _, m := range o.Maps {
			for n, t := range m.Records {
				t.JSON(make([]byte, min(n, 1<<16)))
			}
			m.KeyType.JSON(make([]byte, min(m.KeySize, 1<<16)))
			m.ValueType.JSON(make([]byte, min(m.ValueSize, 1<<16)))
			m.RecordType(8).JSON(make([]byte, 8))
			if m.MaxEntries > 1<<16 || m.ValueSize > 1<<12 {
				return // allowed, but slow here
			}
		}
		c, err := o.Load(2, Heap{}, 10000)
		if err != nil {
			return
		}
		defer c.Close()
		for _, p := range c.Programs {
			p.hostOnly()
			if _, err := NewVM(p.Program, 0).Run(make([]byte, RegsSize), &fakeEnv{}); err != nil {
				var fault *Fault
				if !errors.As(err, &fault) {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestTypes runs a program that fills a map and a ring, and checks their contents by
// the types of the object.
func TestTypes(t *testing.T) {
	o, err := LoadObject(readObject(t, "mixed.o"), Selection{Section: "kprobe/vfs_read"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.Load(1, Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := NewVM(c.find(t, "good").Program, 0).Run(make([]byte, RegsSize), NoEnv{}); err != nil {
		t.Fatal(err)
	}
	const event = `{"got":-5,"pid":7,"comm":"helloa","bits":{"low":-1,"flags":5,"more":17},"color":"BLUE","raw":[1,2,3,4],"yes":true}`
	got := map[string]string{}
	for name, m := range c.Maps {
		s := m.Spec()
		if s.Kind == RingBuf {
			m.Drain(func(r Record) bool {
				got[name] = string(s.RecordType(len(r.Data)).JSON(r.Data))
				return true
			})
			continue
		}
		m.Walk(func(key []byte, vals [][]byte) bool {
			got[name] = string(s.KeyType.JSON(key)) + " " + string(s.ValueType.JSON(vals[0]))
			return true
		})
	}
	for name, want := range map[string]string{
		"events": `{"a":1,"b":-2} ` + event, "ring": event, ".data": ` {"seen":-4}`, ".rodata": ` {"threshold":5,"name":"abc"}`,
	} {
		if got[name] != want {
			t.Errorf("%s: %s, want %s", name, got[name], want)
		}
	}
	var none *Type
	if none.JSON(make([]byte, 4)) != nil || c.Maps["events"].Spec().ValueType.JSON(make([]byte, 4)) != nil {
		t.Error("bytes without a type, or of another size, have a form")
	}
}

// TestAddressesInData refuses programs that use data with addresses in it, by the variable, and no others.
func TestAddressesInData(t *testing.T) {
	b := readObject(t, "strptr.o")
	if _, err := LoadObject(b, Selection{}); err == nil || !strings.Contains(err.Error(), `section ".rodata": "names" has addresses in it`) {
		t.Errorf("%v", err)
	}
	if o, err := LoadObject(b, Selection{Section: "kprobe/vfs_write"}); err != nil || len(o.Programs) != 1 {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := LoadObject(readObject(t, "arena.o"), Selection{}); err == nil || !strings.Contains(err.Error(), `instruction 0: "counter" is in an arena, which is not supported`) {
		t.Errorf("%v", err)
	}
}

// TestWeakMaps loads weak maps and variables that the file defines.
func TestWeakMaps(t *testing.T) {
	o, err := LoadObject(readObject(t, "weakmap.o"), Selection{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.Load(1, Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	vm := NewVM(nil, 0)
	for range 2 {
		vm.Use(c.Programs[0].Program)
		if _, err := vm.Run(make([]byte, RegsSize), NoEnv{}); err != nil {
			t.Fatal(err)
		}
		vm.Leave()
	}
	v, err := c.Maps["counts"].Lookup([]byte{1, 0, 0, 0})
	if err != nil || binary.LittleEndian.Uint64(v[0]) != 8 {
		t.Errorf("%v, %v", v, err)
	}
}

// TestLeftOutTail leaves out a program that is also in a map of programs: a tail call
// to it continues after the call.
func TestLeftOutTail(t *testing.T) {
	has := func(f string) bool { return f == "vfs_read" }
	o, err := LoadObject(readObject(t, "tails.o"), Selection{Has: has})
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.Load(1, Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	vm := NewVM(nil, 0)
	vm.Use(c.Programs[0].Program)
	if _, err := vm.Run(make([]byte, RegsSize), NoEnv{}); err != nil {
		t.Fatal(err)
	}
	vm.Leave()
	v, err := c.Maps[".bss"].Lookup([]byte{0, 0, 0, 0})
	if err != nil || binary.LittleEndian.Uint64(v[0])+binary.LittleEndian.Uint64(v[0][8:]) != 101 {
		t.Errorf("%v, %v", v, err)
	}
	c.Close()
	c.Close()
	// One that is missing for another reason is named.
	_, err = LoadObject(readObject(t, "tails.o"), Selection{Section: "kprobe/vfs_read"})
	if err == nil || !strings.Contains(err.Error(), `has program "next" in its values, of section "kprobe/`) || !strings.Contains(err.Error(), "which is not selected: select that section too, with a comma between the two") {
		t.Errorf("%v", err)
	}
}
