package machine

import (
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// deadMachine is a machine without KVM: memory and an image, enough for what
// looks at a guest.
func deadMachine(f *testing.F) (*Machine, *guest.BootState) {
	f.Helper()
	m := &Machine{cfg: Config{Image: tinyGuest(f, make([]byte, 4096), nil, tinySym{"start", tinyText, 4096}), VCPUs: 1, Memory: 4 << 20}}
	m.mem = memory{Memory: new(guest.Memory)}
	m.setPayload(bare{m.cfg.Image})
	layout, err := guest.LayoutFor(m.cfg.Memory)
	if err != nil {
		f.Fatal(err)
	}
	for _, r := range layout.Ranges() {
		if err := m.mem.Add(r.Base, make([]byte, r.Size), r.Name); err != nil {
			f.Fatal(err)
		}
	}
	b, err := m.load(m.payload(), nil)
	if err != nil {
		f.Fatal(err)
	}
	return m, b
}

// FuzzLandings: whatever the guest's instruction, registers and IDT are, the
// places where it can lead are few, and those of handlers are what the IDT says.
func FuzzLandings(f *testing.F) {
	for _, code := range [][]byte{
		{0x90}, {0xc3}, {0xcb}, {0x48, 0xcb}, {0xff, 0xd0}, {0x41, 0xff, 0xe3}, {0xff, 0x24, 0x25, 0, 0, 0x20, 0x81},
		{0xff, 0x2c, 0x24}, {0x64, 0xff, 0x10}, {0xe8, 1, 2, 3, 4}, {0x66, 0xe9, 1, 2}, {0xe2, 0xfe}, {0xcc}, {0xd5, 0x00, 0xa1},
	} {
		f.Add(code, uint64(tinyData), []byte{1, 2, 3, 4, 5, 0x8e, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0}, uint16(0xfff))
	}
	m, boot := deadMachine(f)
	f.Fuzz(func(t *testing.T, code []byte, reg uint64, idt []byte, limit uint16) {
		if len(code) == 0 || len(code) > 4096 || len(idt) > 4096 {
			return
		}
		m.setPayload(bare{tinyGuest(t, code, nil)})
		table := make([]byte, 4096)
		copy(table, idt)
		if err := m.WriteMemory(0, tinyData, table); err != nil {
			t.Fatal(err)
		}
		r := probe.Regs{RIP: tinyText, RSP: reg, RAX: reg, RCX: reg, RDX: reg, RBX: reg, RBP: reg, RSI: reg, RDI: reg, R8: reg, R11: reg, R15: reg}
		v := &vcpu{trapFrame: trapFrame{m: m, regs: &r, sregs: &kvm.Sregs{CR3: uint64(boot.Root)}}}
		v.sregs.IDT.Base, v.sregs.IDT.Limit = tinyData, limit
		v.trap.state = probe.State{Regs: &r, Root: boot.Root}
		before := r
		places, _ := (&inPlace{v: v, site: tinyText}).landings(m.Image().Code(tinyText, x86.MaxLen))
		if r != before {
			t.Errorf("registers changed: %+v, were %+v", r, before)
		}
		if len(places) > 32+4 {
			t.Errorf("%d places", len(places))
		}
		seen := make(map[guest.GVA]bool)
		for _, p := range places {
			if !p.handler {
				continue
			}
			if seen[p.at] {
				t.Errorf("handler %v twice", p.at)
			}
			seen[p.at] = true
			g := table[16*int(p.vector):]
			want := uint64(binary.LittleEndian.Uint16(g)) | uint64(binary.LittleEndian.Uint16(g[6:]))<<16 | uint64(binary.LittleEndian.Uint32(g[8:]))<<32
			if uint64(p.at) != want || g[5]&0x80 == 0 || 16*int(p.vector)+15 > int(limit) {
				t.Errorf("handler %+v, the gate is % x, the limit %#x", p, g[:16], limit)
			}
		}
	})
}

// FuzzDisassemble: a listing of any bytes ends, is in order, and marks the
// instruction it is about.
func FuzzDisassemble(f *testing.F) {
	f.Add([]byte{0x55, 0x48, 0x89, 0xe5, 0xc3}, uint16(1))
	f.Add([]byte{0xcc, 0xcc, 0x0f, 0x0b}, uint16(2))
	f.Add([]byte{0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x90}, uint16(0))
	f.Add([]byte{0x62, 0xf1, 0x7c, 0x48, 0x58, 0xc1}, uint16(4090))
	m, _ := deadMachine(f)
	f.Fuzz(func(t *testing.T, code []byte, off uint16) {
		if len(code) > 4096 || off >= 4096 {
			return
		}
		text := make([]byte, 4096)
		copy(text, code)
		if err := m.space(0).Poke(tinyText, text); err != nil {
			t.Fatal(err)
		}
		rip := guest.GVA(tinyText) + guest.GVA(off)
		lines := disassemble(m.space(0), m.Symbols(), rip, func(guest.GVA, []byte) {})
		if n := len(lines); n < 1 || n > disasmBefore+1+disasmAfter {
			t.Fatalf("%d lines", n)
		}
		current := 0
		for i, l := range lines {
			if l.Current {
				current++
			}
			if l.Current != (l.Addr == rip) || len(l.Bytes) == 0 || len(l.Bytes) > insnMax || l.Text == "" || l.String() == "" {
				t.Errorf("line %d: %+v", i, l)
			}
			if i > 0 && l.Addr < lines[i-1].Addr {
				t.Errorf("line %d goes back: %v after %v", i, l.Addr, lines[i-1].Addr)
			}
		}
		if current != 1 {
			t.Errorf("%d current lines", current)
		}
	})
}
