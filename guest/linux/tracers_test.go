package linux

import (
	"bytes"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// TestKprobes: kprobes of the kernel's own are known from its table, and code is read without them; what the text should be is the
// image's, other than in places that the kernel patches.
func TestKprobes(t *testing.T) {
	const base = guest.GVA(0xffffffffc0000000)
	table, first := base, base+0x1000
	kprobe := structOf("kprobe", "flags", tInt, "opcode", tChar, "hlist", structOf("hlist_node", "next", tPtr, "pprev", tPtr), "addr", tPtr)
	m := &memory{t: t, base: base, b: make([]byte, 0x2000), types: typesOf(t, kprobe,
		structOf("optimized_kprobe", "kp", kprobe, "optinsn", structOf("arch_optimized_insn", "size", tLong, "copied_insn", array(tChar, 4))))}
	symbols := map[string]guest.GVA{"register_kprobe": 1, "kprobe_table": table}
	lookup := func(name string) (guest.GVA, bool) { a, ok := symbols[name]; return a, ok }
	b := boot1(t, 0, "")
	b.read = func(addr guest.GVA, p []byte) error {
		if err := b.readAt(addr, p); err == nil {
			return nil
		}
		return m.read(addr, p)
	}
	b.running.kprobes = newKprobes(m.types, lookup)
	link, _ := m.types.field("kprobe.hlist")
	tail, _ := m.types.field("optimized_kprobe.optinsn.copied_insn")
	text := func(addr guest.GVA) []byte { return b.ram[uint64(addr)-KernelMap:] }
	var r guest.Range
	for _, r = range b.Text(false) {
		break
	}
	own := bytes.Clone(b.Code(r.Start, int(r.End-r.Start)))
	places := []guest.GVA{b.fn(1), b.fn(2) + 5, b.fn(3)} // an int3, a jump, one that is not armed
	var want []Kprobe
	for i, at := range places {
		k := first + guest.GVA(i)*0x100
		was := bytes.Clone(text(at)[:5])
		m.set(k, "kprobe.addr", at, "kprobe.opcode", int(was[0]))
		m.put(k+guest.GVA(tail.Off), was[1:])
		node := k + guest.GVA(link.Off)
		if i == 1 { // after the first in its bucket
			m.put(first+guest.GVA(link.Off), le.AppendUint64(nil, uint64(node)))
		} else {
			m.put(table+guest.GVA(8*i), le.AppendUint64(nil, uint64(node)))
		}
		switch i {
		case 0:
			text(at)[0] = 0xcc
			want = append(want, Kprobe{at, was[:1]})
		case 1:
			copy(text(at), "\xe9\x01\x02\x03\x04")
			want = append(want, Kprobe{at, was})
		}
	}
	b.NotePoke()
	got, err := b.Kprobes()
	if err != nil || len(got) != len(want) {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	for i := range want {
		if got[i].Addr != want[i].Addr || !bytes.Equal(got[i].Orig, want[i].Orig) {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
	if code := b.Code(r.Start, int(r.End-r.Start)); !bytes.Equal(code, own) {
		t.Errorf("code is read with kprobes")
	}
	if code := b.Code(b.fn(2)+7, 2); !bytes.Equal(code, want[1].Orig[2:4]) {
		t.Errorf("a part of what a jump displaces: % x", code)
	}

	// A byte changed by an unknown writer, outside of the places that the kernel
	// patches.
	at := b.fn(1) + 1
	for {
		if _, site := b.core.sites.covers(uint64(at)); !site {
			break
		}
		at++
	}
	text(at)[0] ^= 0x55
	expected, kprobes, err := b.ExpectedText(r, b.Code(r.Start, int(r.End-r.Start)))
	if err != nil || len(kprobes) != 2 || !bytes.Equal(expected[at-r.Start:][:1], own[at-r.Start:][:1]) {
		t.Errorf("%d kprobes, %v; at %v expected %x, want %x", len(kprobes), err, at, expected[at-r.Start], own[at-r.Start])
	}
	for i := range expected {
		if expected[i] != own[i] {
			t.Errorf("at %v expected %x, want %x", r.Start+guest.GVA(i), expected[i], own[i])
			break
		}
	}

	// A table that leads back into itself, and one that leads nowhere.
	m.put(first+guest.GVA(link.Off), le.AppendUint64(nil, uint64(first+guest.GVA(link.Off))))
	if _, err := b.Kprobes(); err == nil {
		t.Error("a table that leads back into itself is read")
	}
	// Code is read often, and the guest's table once.
	b.NotePoke()
	reads, read := 0, b.read
	b.read = func(addr guest.GVA, p []byte) error { reads++; return read(addr, p) }
	for range 100 {
		b.Code(b.fn(1), 8)
	}
	if b.read = read; reads > 4*maxKprobes {
		t.Errorf("%d reads for 100 times 8 bytes of code", reads)
	}
	m.put(first+guest.GVA(link.Off), le.AppendUint64(nil, 1))
	if _, err := b.Kprobes(); err == nil {
		t.Error("a table that leads nowhere is read")
	}
}
