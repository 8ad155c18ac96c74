package bpf

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// showKernel has types of every kind, and a function that show.o is at.
func showKernel(t testing.TB) *Kernel {
	t.Helper()
	i32, u8, long := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}, &btf.Int{Name: "unsigned char", Size: 1}, &btf.Int{Name: "unsigned long", Size: 8}
	char := &btf.Int{Name: "char", Size: 1, Encoding: btf.Signed}
	at := func(name string, t btf.Type, off uint32) btf.Member {
		return btf.Member{Name: name, Type: t, Offset: btf.Bits(8 * off)}
	}
	field := func(name string, off, bits uint32) btf.Member {
		return btf.Member{Name: name, Type: i32, Offset: btf.Bits(off), BitfieldSize: btf.Bits(bits)}
	}
	array := func(t btf.Type, n uint32) *btf.Array { return &btf.Array{Index: i32, Type: t, Nelems: n} }
	pair := &btf.Struct{Name: "pair", Size: 8, Members: []btf.Member{at("a", i32, 0), at("b", i32, 4)}}
	inode := &btf.Struct{Name: "inode", Size: 48}
	atomic := &btf.Typedef{Name: "atomic_t", Type: &btf.Struct{Size: 4, Members: []btf.Member{at("counter", i32, 0)}}}
	state := &btf.Enum{Name: "state", Size: 4, Values: []btf.EnumValue{{Name: "RUNNING"}, {Name: "STOPPED", Value: 4}}}
	inode.Members = []btf.Member{
		at("i_ino", long, 0), at("i_count", atomic, 8), at("i_next", &btf.Pointer{Target: inode}, 16), at("i_name", array(char, 8), 24),
		at("i_fs", &btf.Pointer{Target: &btf.Const{Type: u8}}, 32), at("i_left", i32, 40),
	}
	big := &btf.Enum{Name: "big", Size: 8, Signed: true, Values: []btf.EnumValue{{Name: "LOW", Value: 1<<64 - 5}}}
	all := &btf.Struct{Name: "all", Size: 136, Members: []btf.Member{
		field("one", 1, 3), field("two", 4, 9), at("state", state, 4), at("", &btf.Union{Size: 8, Members: []btf.Member{at("whole", long, 0), at("half", i32, 0)}}, 8),
		at("pairs", array(pair, 2), 16), at("none", array(long, 2), 32), at("big", big, 48), at("fixed", &btf.Const{Type: i32}, 56), at("any", &btf.Pointer{Target: &btf.Void{}}, 64),
		at("wide", &btf.Int{Name: "__int128", Size: 16}, 72), at("bytes", array(&btf.Typedef{Name: "u8", Type: u8}, 4), 88), at("words", array(long, 3), 96), at("short", &btf.Int{Name: "short", Size: 2, Encoding: btf.Signed}, 120), at("empty", pair, 124),
	}}
	file := &btf.Struct{Name: "file", Size: 1 << 20, Members: []btf.Member{at("words", array(long, 1<<17), 0)}}
	read := &btf.Func{Name: "vfs_read", Linkage: btf.GlobalFunc, Type: &btf.FuncProto{Return: long, Params: []btf.FuncParam{{Name: "a", Type: long}, {Name: "b", Type: long}, {Name: "c", Type: long}}}}
	b, err := btf.NewBuilder([]btf.Type{read, inode, state, all, file, pair}, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := b.Spec()
	if err != nil {
		t.Fatal(err)
	}
	return &Kernel{Types: []*btf.Spec{spec}}
}

// showProgram returns a function that runs a program of show.o, and returns its text
// and result.
func showProgram(t *testing.T, section string) (run func(env Env, args ...uint64) (string, int64, error), v *VM) {
	t.Helper()
	o, err := LoadObject(readObject(t, "show.o"), Selection{Section: section, Kernel: showKernel(t)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.Load(1, Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	p := c.Programs[0].Program
	for _, w := range p.Warnings() {
		t.Error(&w)
	}
	if why := p.HostReason(); why != "it calls snprintf_btf, which formats text, which the host does" {
		t.Error(why)
	}
	v = NewVM(p, 0)
	return func(env Env, args ...uint64) (string, int64, error) {
		var a [3]uint64
		copy(a[:], args)
		ctx := regsContext(x86.Regs{RDI: a[0], RSI: a[1], RDX: a[2]})
		if p.Kind() == Fentry {
			ctx = ctx[:0]
			for _, x := range a {
				ctx = binary.LittleEndian.AppendUint64(ctx, x)
			}
		}
		_, err := v.Run(ctx, env)
		text, _, _ := strings.Cut(string(c.Maps[".bss"].valueAt(0, 0)[bssOf(t, o, "text"):][:512]), "\x00")
		return text, int64(globalWord(t, c, ".bss", bssOf(t, o, "length"))), err
	}, v
}

// bssOf returns the offset of a global variable of show.o.
func bssOf(t *testing.T, o *Object, name string) int {
	t.Helper()
	for _, m := range o.Maps {
		if m.Name != ".bss" {
			continue
		}
		for _, v := range m.ValueType.t.(*btf.Datasec).Vars {
			if v.Type.TypeName() == name {
				return int(v.Offset)
			}
		}
	}
	t.Fatalf("no variable %q", name)
	return 0
}

// TestShow prints values as Linux's snprintf_btf does (kernel/bpf/btf.c).
func TestShow(t *testing.T) {
	const at = 0xffff888000001000
	env := &fakeEnv{}
	word := func(off, v uint64, size int) {
		env.put(at+off, string(binary.LittleEndian.AppendUint64(nil, v)[:size]))
	}
	for off := range uint64(200) {
		word(off, 0, 1)
	}
	word(0, 99, 8)
	word(8, 1, 4)
	word(16, at, 8)
	env.put(at+24, "a\x01\xe9\x00c")
	word(32, 7, 8)
	word(40, 1<<32-7, 4)
	const all = at + 0x1000
	whole := func(off, v uint64, size int) { word(0x1000+off, v, size) }
	for off := range uint64(136) {
		whole(off, 0, 1)
	}
	whole(0, 5<<1|300<<4, 4)
	whole(8, 1<<32, 8)
	whole(20, 7, 4)
	whole(48, 1<<64-5, 8)
	whole(56, 3, 4)
	whole(64, 0xfff, 8)
	whole(72, 0xabc, 8)
	whole(80, 0x12, 8)
	env.put(all+88, "\x00abc")
	whole(104, 6, 8)
	whole(120, 0xfffe, 2)
	const (
		compact = showCompact
		names   = showCompact | showNoNames
	)
	const state, small, zero = at + 0x2000, at + 0x2010, at + 0x2020
	word(0x2000, 4, 4)
	word(0x2010, 1<<32-44, 4)
	word(0x2020, 0, 8)
	run, v := showProgram(t, "fentry/vfs_read")
	for _, tt := range []struct {
		addr, what, flags uint64
		want              string
	}{
		{small, 1, 0, "(int)-44\n"},
		{small, 1, compact, "(int)-44"},
		{small, 1, names, "-44"},
		{zero, 1, compact, "(int)0"},
		{zero, 1, names | showZero, "0"},
		{state, 2, compact, "(enum state)STOPPED"},
		{state, 2, names, "STOPPED"},
		{zero, 2, compact, "(enum state)RUNNING"},
		{small, 2, compact, "(enum state)4294967252"},
		{at, 0, compact | showRaw, "(struct inode){.i_ino = (unsigned long)99,.i_count = (atomic_t){.counter = (int)1,},.i_next = (struct inode *)0xffff888000001000,.i_name = (char[])['a',1,'\xe9',],.i_fs = (unsigned char *)0x0000000000000007,.i_left = (int)-7,}"},
		{at, 0, names, "{99,{1,},0xffff888000001000,['a',1,'\xe9',],0x0000000000000007,-7,}"},
		{at, 0, 0, "(struct inode){\n .i_ino = (unsigned long)99,\n .i_count = (atomic_t){\n  .counter = (int)1,\n },\n .i_next = (struct inode *)0xffff888000001000,\n .i_name = (char[])[\n  'a',\n  1,\n  '\xe9',\n ],\n .i_fs = (unsigned char *)0x0000000000000007,\n .i_left = (int)-7,\n}\n"},
		{zero, 0, compact, "(struct inode){}"},
		{zero, 0, names | showZero, "{0,{0,},0x0000000000000000,[],0x0000000000000000,0,}"},
		{all, 3, compact, "(struct all){.one = (int)0x5,.two = (int)0x12c,.state = (enum state)RUNNING,(union){.whole = (unsigned long)4294967296,}," +
			".pairs = (struct pair[])[7,},],.big = (enum big)LOW,()3,.any = ( *)0x0000000000000fff,.wide = (__int128)0x120000000000000abc,.words = (unsigned long[])[6,],.short = (short)-2,}"},
	} {
		want := tt.want
		if tt.what == 3 { // a member whose type begins with a qualifier
			want = strings.Replace(want, ",()3", ",.fixed = ()3", 1)
		}
		got, n, err := run(env, tt.addr, tt.what, tt.flags)
		if got != want || n != int64(len(want)) || err != nil {
			t.Errorf("flags %d: %d, %v\n%q, want\n%q", tt.flags, n, err, got, want)
		}
	}
	for _, tt := range []struct {
		addr, what, flags uint64
		want              int64
	}{{small, 1, 16, -errInval}, {small, 9, 0, -errInval}, {small, 4, 0, -errNoEnt}, {0, 1, 0, -errFault}, {all - 1<<20 + 8, 5, 0, -errFault}, {at, 5, 0, -errFault}} {
		if _, n, err := run(env, tt.addr, tt.what, tt.flags); n != tt.want || err != nil {
			t.Errorf("%#x, type %d, flags %d: %d, %v, want %d", tt.addr, tt.what, tt.flags, n, err, tt.want)
		}
	}
	// The second page of a value is not readable.
	const edge = at + 0x4000 - 16
	env.put(edge, string(append(u64(99), u64(2)...)))
	if got, n, err := run(env, edge, 0, compact); n != -errFault || err != nil || got != "(struct inode){.i_ino = (unsigned long)99,.i_count = (atomic_t){.counter = (int)2,}," {
		t.Errorf("%q, %d, %v", got, n, err)
	}
	ctx := append(append(u64(all), u64(3)...), u64(0)...)
	if n := testing.AllocsPerRun(10, func() { _, _ = v.Run(ctx, env) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// zeroEnv has zeros everywhere.
type zeroEnv struct{ NoEnv }

func (zeroEnv) ReadKernel(_ uint64, p []byte) error { clear(p); return nil }

// TestShowBounds: a large value takes a bounded time, and the text has the room that it
// was given.
func TestShowBounds(t *testing.T) {
	run, v := showProgram(t, "fentry/vfs_read")
	if _, n, err := run(zeroEnv{}, 1<<63, 5, 0); n != -errTooBig || err != nil {
		t.Error(n, err)
	}
	if took := DefaultBudget - v.left; took > v.prog.Steps() || took < costShow-showNode {
		t.Errorf("took %d of at most %d", took, v.prog.Steps())
	}
	short := *v.prog
	short.budget = 1000
	var f *Fault
	if _, err := NewVM(&short, 0).Run(append(append(u64(1<<63), u64(5)...), u64(0)...), zeroEnv{}); !errors.As(err, &f) || f.Code != FaultBudget {
		t.Error(err)
	}
	run, _ = showProgram(t, "kprobe/own")
	for _, tt := range []struct {
		size, ptr uint64
		text      string
		n         int64
	}{{15, 16, "(int)-1234", 10}, {11, 16, "(int)-1234", 10}, {10, 16, "(int)-123", 10}, {1, 16, "", 10}, {0, 16, "", 10}, {15, 0, "", -errInval}} {
		if text, n, err := run(NoEnv{}, tt.size, tt.ptr, showCompact); text != tt.text || n != tt.n || err != nil {
			t.Errorf("%d bytes: %q, %d, %v, want %q, %d", tt.size, text, n, err, tt.text, tt.n)
		}
	}
	// A kernel that does not have the types.
	k := showKernel(t)
	k.Types = testKernel(t).Types[:1]
	o, err := LoadObject(readObject(t, "show.o"), Selection{Section: "fentry/vfs_read", Kernel: k})
	if err == nil {
		_, err = o.Load(1, Heap{}, 0)
	}
	if err == nil || !strings.Contains(err.Error(), "have no struct all") {
		t.Error(err)
	}
}
