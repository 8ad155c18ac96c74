package linux

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
)

// orcRow is an entry of a table, by its own address.
type orcRow struct {
	ip      uint64
	sp, bp  int16
	regs    uint16 // the lowest 8 bits
	typ     uint16
	endMark uint16 // bit 10
}

// orcTable is a kernel of nothing but a table.
func orcTable(rows ...orcRow) *Kernel {
	const ipsAt, entriesAt = 0xffffffff82000000, 0xffffffff83000000
	ips := elf.Part{Name: ".orc_unwind_ip", Addr: ipsAt}
	entries := elf.Part{Name: ".orc_unwind", Addr: entriesAt}
	for i, r := range rows {
		ips.Data = le.AppendUint32(ips.Data, uint32(r.ip-(ipsAt+4*uint64(i))))
		for _, x := range []uint16{uint16(r.sp), uint16(r.bp), r.regs | r.typ<<8 | r.endMark<<10} {
			entries.Data = le.AppendUint16(entries.Data, x)
		}
	}
	return &Kernel{mem: &elf.Memory{Sections: []elf.Part{ips, entries}}}
}

// TestORC has each register and type, in each layout.
func TestORC(t *testing.T) {
	const text = 0xffffffff81000000
	var outer guest.FrameRule
	outer.Outer = true
	same := [16]uint16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	since72 := [16]uint16{0, 8, 2, 5, 4, 3, 6, 7, 10, 9, 11}
	for _, c := range []struct {
		name                     string
		end, call, regs, partial uint16
		numbers                  [16]uint16
	}{{"2 bits", 0, 0, 1, 2, same}, {"3 bits", 1, 2, 3, 4, same}, {"3 bits, of 7.2", 1, 2, 3, 4, since72}} {
		cases := []struct {
			row  orcRow
			want guest.FrameRule
		}{
			{orcRow{sp: 8, regs: 0x05, typ: c.call}, guest.FrameRule{CFA: 8, Return: -8}},
			{orcRow{sp: 16, bp: -16, regs: 0x15, typ: c.call}, guest.FrameRule{CFA: 16, Return: -8, RBP: -16}},
			{orcRow{sp: 16, bp: -16, regs: 0x14, typ: c.call}, guest.FrameRule{Base: guest.FrameRBP, CFA: 16, Return: -8, RBP: -16}},
			{orcRow{sp: 0, bp: 8, regs: 0x46, typ: c.call}, guest.FrameRule{Base: guest.FrameR10, Return: -8, RBP: 8, AtRBP: true}},
			{orcRow{sp: 0, regs: 0x07, typ: c.call}, guest.FrameRule{Base: guest.FrameR13, Return: -8}},
			{orcRow{sp: -8, regs: 0x48, typ: c.call}, guest.FrameRule{Base: guest.FrameRBP, Indirect: true, Inner: -8, Return: -8, AtRBP: true}},
			{orcRow{sp: 8, regs: 0x09, typ: c.call}, guest.FrameRule{Indirect: true, CFA: 8, Return: -8}},
			{orcRow{sp: 0, regs: 0x05, typ: c.regs}, guest.FrameRule{Trap: true, Full: true, Return: 128, RBP: 32}},
			{orcRow{sp: 0, regs: 0x03, typ: c.regs}, guest.FrameRule{Base: guest.FrameRDI, Trap: true, Full: true, Return: 128, RBP: 32}},
			{orcRow{sp: 24, regs: 0x05, typ: c.partial}, guest.FrameRule{CFA: 24, Trap: true}},
			{orcRow{sp: 0, regs: 0x02, typ: c.partial}, guest.FrameRule{Base: guest.FrameRDX, Trap: true}},
			{orcRow{regs: 0x00, typ: c.end}, outer},
			{orcRow{sp: 8, regs: 0x01, typ: c.call}, outer},
			{orcRow{sp: 8, regs: 0x0a, typ: c.call}, outer},
			{orcRow{sp: 8, regs: 0x25, typ: c.call}, guest.FrameRule{CFA: 8, Return: -8, Outer: true}},
		}
		if c.call == 0 {
			cases[11].row.endMark = 1
		}
		var rows []orcRow
		for i, x := range cases {
			x.row.ip = text + 0x10*uint64(i)
			rows = append(rows, x.row)
		}
		for i := range 16 {
			rows = append(rows, orcRow{ip: text + 0x1000 + uint64(i), sp: 8, regs: 5, typ: c.call})
		}
		for i, r := range rows {
			rows[i].regs = c.numbers[r.regs&15] | c.numbers[r.regs>>4]<<4
		}
		o, err := orcTable(rows...).ORC()
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		for i, x := range cases {
			for _, pc := range []uint64{rows[i].ip, rows[i].ip + 0xf} {
				if got, ok := o.frameRule(pc); !ok || got != x.want {
					t.Errorf("%s, %d: %+v %v, want %+v", c.name, i, got, ok, x.want)
				}
			}
		}
		if r, ok := o.frameRule(text - 1); ok {
			t.Errorf("%s: before the table: %+v", c.name, r)
		}
		if n := testing.AllocsPerRun(100, func() { o.frameRule(text + 5) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// TestORCSearch: the rule is that of the last entry at or before an address.
func TestORCSearch(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var rows []orcRow
		at := uint64(0xffffffff81000000)
		for range 1 + rnd.IntN(40) {
			at += uint64(rnd.IntN(4))
			rows = append(rows, orcRow{ip: at, sp: int16(8 * rnd.IntN(1000)), regs: 5})
		}
		o, err := orcTable(rows...).ORC()
		if err != nil {
			t.Fatal(err)
		}
		for pc := rows[0].ip - 2; pc < at+3; pc++ {
			want, found := int16(0), false
			for _, r := range rows {
				if r.ip <= pc {
					want, found = r.sp, true
				}
			}
			if got, ok := o.frameRule(pc); ok != found || got.CFA != int32(want) {
				t.Fatalf("%#x of %+v: %+v %v, want %d", pc, rows, got, ok, want)
			}
		}
	}
}

func TestORCDamaged(t *testing.T) {
	row := orcRow{ip: 0xffffffff81000000, sp: 8, regs: 5}
	before := row
	before.ip--
	odd := row
	odd.typ = 3
	for name, k := range map[string]*Kernel{
		"ORC table: entry 1 is not in order":                                  orcTable(row, before),
		"ORC tables of a layout that is not known: most entries are no calls": orcTable(odd, row, odd),
		"ORC tables of 4 and 12 bytes do not belong together":                 {mem: &elf.Memory{Sections: []elf.Part{orcTable(row).mem.Sections[0], orcTable(row, row).mem.Sections[1]}}},
		"the kernel has no ORC tables (CONFIG_UNWINDER_ORC)":                  {mem: &elf.Memory{}},
	} {
		if _, err := k.ORC(); err == nil || err.Error() != name {
			t.Errorf("%v, want %s", err, name)
		}
	}
	if _, err := orcTable().ORC(); !errors.Is(err, ErrNoORC) {
		t.Errorf("an empty table: %v", err)
	}
}

// FuzzORC: whatever the tables hold, and the stack, a walk ends.
func FuzzORC(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 4, 0, 0, 0}, []byte{8, 0, 0, 0, 5, 0, 8, 0, 0xf0, 0xff, 0x15, 0}, uint64(0x1004), []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Fuzz(func(t *testing.T, ips, entries []byte, pc uint64, stack []byte) {
		k := &Kernel{mem: &elf.Memory{Sections: []elf.Part{{Name: ".orc_unwind_ip", Addr: 0x1000, Data: ips}, {Name: ".orc_unwind", Addr: 0x9000, Data: entries}}}}
		o, err := k.ORC()
		if err != nil {
			return
		}
		reads := 0
		x := guest.Frame{PC: pc, Known: true}
		for range 100 {
			r, ok := o.frameRule(uint64(x.RuleAddr()))
			if !ok || !x.Caller(r, func(addr uint64) (uint64, bool) {
				reads++
				if i := int(addr % 4096); i+8 <= len(stack) {
					return le.Uint64(stack[i:]), true
				}
				return 0, false
			}) {
				break
			}
		}
		if reads > 100*9 {
			t.Errorf("%d reads", reads)
		}
	})
}
