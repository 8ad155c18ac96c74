package linux

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// TextRead returns the functions by which the kernel's kprobes read the bytes of an
// instruction (arch/x86/kernel/kprobes): each takes a buffer and an address, and
// returns the address of the bytes. It returns none if the kernel has no kprobes.
func (v *View) TextRead() (names []string) {
	for _, name := range []string{"recover_probed_instruction", "__recover_optprobed_insn", "__recover_probed_insn"} {
		if _, ok := v.Address(name); ok {
			names = append(names, name)
		}
	}
	return names
}

// TextWritten returns the function by which the kernel writes to its text
// (__text_poke in arch/x86/kernel/alternative.c), and the index of its address
// argument; the bytes and their number follow. It returns no name if the kernel's
// types do not tell.
func (v *View) TextWritten() (name string, first int) {
	k := v.running.kprobes
	return k.poke, k.pokeArg
}

// findPoke determines the result of TextWritten.
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
	Orig []byte // the bytes that its int3 or its jump displaces
}

// kprobes reads the kernel's table of its kprobes (kernel/kprobes.c).
type kprobes struct {
	table                  guest.GVA // 0 = not known
	link, addr, code, tail field
	jumps                  bool // tail is known
	missing                []string

	poke    string // see View.TextWritten
	pokeArg int

	pokes atomic.Uint64              // writes of the kernel's to its text
	seen  atomic.Pointer[kprobeList] // as of some time
}

// kprobeList is the kernel's kprobes, ascending by address, for one state of the
// table.
type kprobeList struct {
	pokes uint64
	heads [8 * kprobeBuckets]byte // of the table: each registration of a kprobe changes one
	all   []kprobeAt
}

// kprobeAt is one struct kprobe.
type kprobeAt struct {
	at, addr guest.GVA
	code     byte // the first byte of the instruction
}

// The table's size, and the limit for reading it.
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
	var in, kp field
	if f.types != nil {
		var err error
		if in, err = f.types.field("optimized_kprobe.optinsn.copied_insn"); err == nil {
			kp, err = f.types.field("optimized_kprobe.kp")
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

// Kprobes reads the kernel's own kprobes, except those that use its function tracer
// and those that are not armed. An error is about the kernel's table.
func (v *View) Kprobes() (all []Kprobe, err error) {
	k := v.running.kprobes
	if k.table == 0 {
		if len(k.missing) == 0 {
			return nil, nil // it has none
		}
		return nil, errors.New(k.missing[0])
	}
	list, err := k.list(v.read, nil)
	if list == nil {
		return nil, err
	}
	for _, x := range list.all {
		text := make([]byte, jumpLen)
		if v.read(x.addr, text) != nil {
			continue // of a module that was unloaded
		}
		orig, e := k.displacedBytes(x, text[0], v.read)
		if e != nil {
			return all, e
		}
		if orig != nil {
			all = append(all, Kprobe{x.addr, orig})
		}
	}
	return all, err
}

// list returns the kprobes in the kernel's table, or with an error those that could
// be read. It returns l if that is not nil and the table is the same.
func (k *kprobes) list(read Read, l *kprobeList) (*kprobeList, error) {
	pokes := k.pokes.Load()
	now := &kprobeList{pokes: pokes}
	if err := read(k.table, now.heads[:]); err != nil {
		return now, fmt.Errorf("read the table of kprobes: %w", err)
	}
	if l != nil && l.pokes == pokes && l.heads == now.heads {
		return l, nil
	}
	err := k.walk(now, read)
	slices.SortFunc(now.all, func(a, b kprobeAt) int { return cmp.Compare(a.addr, b.addr) })
	k.seen.Store(now) // even with an error: an invalid table is read only once
	return now, err
}

// walk adds the kprobes of l's table to it.
func (k *kprobes) walk(l *kprobeList, read Read) error {
	fail := func(err error) error { return fmt.Errorf("read the table of kprobes: %w", err) }
	left := maxKprobes
	for i := range kprobeBuckets {
		next := binary.LittleEndian.Uint64(l.heads[8*i:])
		for next != 0 {
			if left--; left < 0 {
				return errMany
			}
			at := guest.GVA(next) - guest.GVA(k.link.Off)
			addr, err := read.value(at, k.addr)
			if err != nil {
				return fail(err)
			}
			code, err := read.value(at, k.code)
			if err != nil {
				return fail(err)
			}
			l.all = append(l.all, kprobeAt{at, guest.GVA(addr), byte(code)})
			if next, err = read.value(guest.GVA(next), word); err != nil {
				return fail(err)
			}
		}
	}
	return nil
}

// displacedBytes returns the bytes that the kprobe displaces if the text begins with
// first, or nil: that byte says whether it is armed, and how.
func (k *kprobes) displacedBytes(x kprobeAt, first byte, read Read) (orig []byte, err error) {
	switch {
	case first == x.code: // it is not armed, or uses the function tracer
	case first == x86.Int3:
		orig = []byte{x.code}
	case first == 0xe9 && k.jumps:
		orig = make([]byte, jumpLen)
		orig[0] = x.code
		err = read(x.at+guest.GVA(k.tail.Off), orig[1:])
	}
	return orig, err
}

// NotePoke tells the view that the kernel has written to its text.
func (v *View) NotePoke() { v.running.kprobes.pokes.Add(1) }

// restoreDisplaced replaces bytes of the kernel's own kprobes in b, which is text at
// addr, by the bytes that they displace.
func (v *View) restoreDisplaced(addr guest.GVA, b []byte) {
	k := v.running.kprobes
	if k == nil || k.table == 0 {
		return
	}
	list, _ := k.list(v.read, k.seen.Load()) // those that can be read
	first, _ := slices.BinarySearchFunc(list.all, addr-(jumpLen-1), func(x kprobeAt, a guest.GVA) int { return cmp.Compare(x.addr, a) })
	for _, x := range list.all[first:] {
		if x.addr >= addr+guest.GVA(len(b)) {
			break
		}
		text := make([]byte, 1)
		if x.addr >= addr {
			text = b[x.addr-addr:]
		} else if v.read(x.addr, text) != nil {
			continue
		}
		orig, err := k.displacedBytes(x, text[0], v.read)
		if err != nil {
			continue
		}
		for i := range orig {
			if off := x.addr + guest.GVA(i) - addr; off < guest.GVA(len(b)) {
				b[off] = orig[i]
			}
		}
	}
}

// ExpectedText returns the bytes that the text in r should have: the image's, or,
// where the kernel patches itself, those in memory, own. kprobes are the places of
// the kernel's own kprobes in it. The error says why these are not known.
func (v *View) ExpectedText(r guest.Range, own []byte) (want []byte, kprobes []guest.Range, err error) {
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
	if p == nil || IsFile(r.Start) || p.sites == nil || p.lacks[mCount]+p.lacks[jumpTable]+p.lacks[staticCallSites] != "" {
		return want, kprobes, err
	}
	image := p.initialBytes(r.Start, uint64(len(want)))
	for i := 0; i < len(image); i++ {
		if image[i] == want[i] {
			continue
		}
		at := r.Start + guest.GVA(i)
		if end, ok := p.sites.covers(uint64(at - p.slide)); ok {
			i += int(end-uint64(at-p.slide)) - 1
		} else if s, ok := p.Find(at); !ok || p.blacklistReason(s.Addr) != tracerCode {
			want[i] = image[i]
		}
	}
	return want, kprobes, err
}
