package linux

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
)

// TextRead returns the functions that the kernel's kprobes ask for the bytes of an instruction (arch/x86/kernel/kprobes):
// each takes a buffer and an address, and returns where the bytes are. It returns none where the kernel has no kprobes.
func (v *View) TextRead() (names []string) {
	for _, name := range []string{"recover_probed_instruction", "__recover_optprobed_insn", "__recover_probed_insn"} {
		if _, ok := v.Address(name); ok {
			names = append(names, name)
		}
	}
	return names
}

// TextWritten returns the function that the kernel writes to its text by (__text_poke in arch/x86/kernel/alternative.c), and which of its
// arguments is the address; the bytes and their number follow. It returns no name where the kernel's types do not say that.
func (v *View) TextWritten() (name string, first int) {
	k := v.running.kprobes
	return k.poke, k.pokeArg
}

// findPoke finds what TextWritten returns.
func (k *kprobes) findPoke(f *finder) {
	const function = "__text_poke"
	var fn *btf.Func
	if _, ok := f.lookup(function); !ok || f.types == nil || f.types.Spec.TypeByName(function, &fn) != nil {
		return
	}
	if proto, ok := fn.Type.(*btf.FuncProto); ok && len(proto.Params) >= 3 && len(proto.Params) <= 4 {
		k.poke, k.pokeArg = function, len(proto.Params)-3
	}
}

// Kprobe is a kprobe of the kernel's own that has bytes in its text.
type Kprobe struct {
	Addr guest.GVA
	Orig []byte // what its int3 displaces, or its jump
}

// kprobes is how the kernel's table of its kprobes is read (kernel/kprobes.c).
type kprobes struct {
	table                  guest.GVA // 0 = not known
	link, addr, code, tail Field
	jumps                  bool // tail is known
	missing                []string

	poke    string // see View.TextWritten
	pokeArg int

	pokes atomic.Uint64              // writes of the kernel's to its text
	seen  atomic.Pointer[kprobeList] // as of some time
}

// kprobeList are the armed kprobes, ascending, after that many pokes.
type kprobeList struct {
	pokes uint64
	all   []Kprobe
}

// The table's size, and the bound of what is read of it.
const (
	kprobeBuckets = 64
	maxKprobes    = 1 << 13
)

func newKprobes(types *Types, lookup Lookup) *kprobes {
	k, f := &kprobes{}, &finder{types: types, lookup: lookup}
	k.findPoke(f)
	if _, ok := lookup("register_kprobe"); !ok {
		return k
	}
	if f.fields("kprobes", need{&k.link, "kprobe.hlist"}, need{&k.addr, "kprobe.addr"}, need{&k.code, "kprobe.opcode"}) {
		k.table, _ = f.symbol("kprobes", "kprobe_table")
	}
	var in, kp Field
	if f.types != nil {
		var err error
		if in, err = f.types.Field("optimized_kprobe.optinsn.copied_insn"); err == nil {
			kp, err = f.types.Field("optimized_kprobe.kp")
		}
		k.jumps = err == nil && kp.Off == 0 && in.Size == jumpLen-1
		k.tail = in
	}
	k.missing = f.missing
	return k
}

// copy returns k for another run of the kernel.
func (k *kprobes) copy() *kprobes {
	return &kprobes{table: k.table, link: k.link, addr: k.addr, code: k.code, tail: k.tail, jumps: k.jumps, missing: k.missing, poke: k.poke, pokeArg: k.pokeArg}
}

// jumpLen is the length of the kernel's jump.
const jumpLen = 5

// Kprobes reads the kernel's own kprobes, other than those by its function tracer and those that are not armed. An error is about
// the kernel's table.
func (v *View) Kprobes() (all []Kprobe, err error) {
	k := v.running.kprobes
	if k.table == 0 {
		if len(k.missing) == 0 {
			return nil, nil // it has none
		}
		return nil, errors.New(k.missing[0])
	}
	left := maxKprobes
	for i := range guest.GVA(kprobeBuckets) {
		next, err := v.read.value(k.table+8*i, word)
		for ; err == nil && next != 0; next, err = v.read.value(guest.GVA(next), word) {
			if left--; left < 0 {
				return all, errMany
			}
			p, err := k.kprobe(guest.GVA(next)-guest.GVA(k.link.Off), v.read)
			if err != nil {
				return all, err
			}
			if p.Orig != nil {
				all = append(all, p)
			}
		}
		if err != nil {
			return all, fmt.Errorf("read the table of kprobes: %w", err)
		}
	}
	return all, nil
}

// kprobe reads the struct kprobe at at. Its text says whether it is armed, and how.
func (k *kprobes) kprobe(at guest.GVA, read Read) (p Kprobe, err error) {
	addr, err := read.value(at, k.addr)
	if err != nil {
		return p, err
	}
	code, err := read.value(at, k.code)
	if err != nil {
		return p, err
	}
	p.Addr = guest.GVA(addr)
	text := make([]byte, jumpLen)
	if read(p.Addr, text) != nil {
		return p, nil // of a module that has gone
	}
	switch first := text[0]; {
	case first == byte(code): // it is not armed, or by the function tracer
	case first == 0xcc:
		p.Orig = []byte{byte(code)}
	case first == 0xe9 && k.jumps:
		p.Orig = make([]byte, jumpLen)
		p.Orig[0] = byte(code)
		err = read(at+guest.GVA(k.tail.Off), p.Orig[1:])
	}
	return p, err
}

// Poked tells the view that the kernel has written to its text.
func (v *View) Poked() { v.running.kprobes.pokes.Add(1) }

// restoreDisplaced puts into b, which is text at addr, what the kernel's own kprobes displace.
func (v *View) restoreDisplaced(addr guest.GVA, b []byte) {
	k := v.running.kprobes
	if k == nil || k.table == 0 {
		return
	}
	list, pokes := k.seen.Load(), k.pokes.Load()
	if list == nil || list.pokes != pokes {
		all, _ := v.Kprobes() // those that can be read
		slices.SortFunc(all, func(a, b Kprobe) int { return cmp.Compare(a.Addr, b.Addr) })
		list = &kprobeList{pokes, all}
		k.seen.Store(list)
	}
	first, _ := slices.BinarySearchFunc(list.all, addr-(jumpLen-1), func(k Kprobe, a guest.GVA) int { return cmp.Compare(k.Addr, a) })
	for _, k := range list.all[first:] {
		if k.Addr >= addr+guest.GVA(len(b)) {
			break
		}
		for i := range k.Orig {
			if off := k.Addr + guest.GVA(i) - addr; off < guest.GVA(len(b)) {
				b[off] = k.Orig[i]
			}
		}
	}
}

// Expected returns the bytes that the text in r should have: those of the image where the kernel does not patch itself, and else
// what is in memory, own. kprobes are the places where that has a kprobe of the kernel's own. The error says why the latter are not known.
func (v *View) Expected(r guest.Range, own []byte) (want []byte, kprobes []guest.Range, err error) {
	want = append([]byte{}, own...)
	all, err := v.Kprobes()
	for _, k := range all {
		if k.Addr < r.Start || k.Addr >= r.End {
			continue
		}
		n := copy(want[k.Addr-r.Start:], k.Orig)
		kprobes = append(kprobes, guest.Range{Start: k.Addr, End: k.Addr + guest.GVA(n)})
	}
	p := v.now.Load().piece(r.Start)
	if p == nil || IsFile(r.Start) || p.sites == nil || p.lacks[MCount]+p.lacks[JumpTable]+p.lacks[StaticCallSites] != "" {
		return want, kprobes, err
	}
	image := p.initialBytes(r.Start, uint64(len(want)))
	for i := 0; i < len(image); i++ {
		if image[i] == want[i] {
			continue
		}
		at := r.Start + guest.GVA(i)
		if end, ok := p.sites.Covers(uint64(at - p.slide)); ok {
			i += int(end-uint64(at-p.slide)) - 1
		} else if s, ok := p.Find(at); !ok || p.blacklistReason(s.Addr) != tracerCode {
			want[i] = image[i]
		}
	}
	return want, kprobes, err
}
