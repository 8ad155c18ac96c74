package linux

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// Addresses of functions: one that records an event, its cold part, one with the same code, and the functions that it calls.
const (
	recordBase = guest.GVA(0xffffffff81000000)
	recordCold = recordBase + 0x1000
	recordSame = recordBase + 0x2000
	ringTake   = recordBase + 0x3000
	ringGive   = recordBase + 0x3100
	otherCode  = recordBase + 0x3200
)

// recordView returns a kernel with these functions that patches these sites.
func recordView(t *testing.T, sites []site, warnings ...guest.GVA) (Tracing, []byte) {
	t.Helper()
	text := bytes.Repeat([]byte{0xcc}, 0x4000)
	put := func(at guest.GVA, code ...byte) { copy(text[at-recordBase:], code) }
	branch := func(at, to guest.GVA, op ...byte) {
		put(at, binary.LittleEndian.AppendUint32(op, uint32(to-at)-uint32(len(op))-4)...)
	}
	branch(recordBase+0, ringTake, 0xe8)             // call reserve
	branch(recordBase+5, recordCold+1, 0x0f, 0x84)   // je into .cold
	put(recordBase+11, 0x0f, 0x0b)                   // WARN
	put(recordBase+13, 0x74, 0x02)                   // je +2
	put(recordBase+15, 0x0f, 0x0b)                   // BUG
	put(recordBase+17, 0x8b, 0x05, 0x10, 0, 0, 0)    // mov 0x10(%rip), %eax
	put(recordBase+23, 0xff, 0x15, 0x20, 0, 0, 0)    // call *0x20(%rip)
	put(recordBase+29, 0x66, 0x66, 0x48, 0x31, 0xc0) // a static call that returns 0
	branch(recordBase+34, ringGive, 0xe8)            // call commit
	put(recordBase+39, 0xc3)
	put(recordCold, 0x90)
	branch(recordCold+1, otherCode, 0xe8)
	branch(recordCold+6, recordBase+11, 0xe9)
	branch(recordSame, recordBase, 0xe9)
	k := &Kernel{}
	p := &piece{k: k, sites: &Sites{sites: sites}, where: []guest.Range{{Start: recordBase, End: recordBase + 0x4000}}}
	for _, a := range warnings {
		p.sites.warnings = append(p.sites.warnings, uint64(a))
	}
	var syms []guest.Symbol
	for _, s := range []struct {
		name string
		at   guest.GVA
		size uint64
	}{
		{"trace_event_raw_event_x", recordBase, 40}, {"trace_event_raw_event_x.cold", recordCold, 11}, {"trace_event_raw_event_same", recordSame, 5},
		{reserveRecord, ringTake, 1}, {commitRecord, ringGive, 1}, {"other", otherCode, 1},
	} {
		syms = append(syms, guest.Symbol{Name: s.name, Addr: s.at, Size: s.size, Kind: guest.SymFunc})
	}
	p.SymbolTable = guest.NewSymbolTable(syms, func(s *guest.Symbol) (uint64, uint64) { return 0x100, 0x100 })
	v := &View{core: p, read: func(addr guest.GVA, b []byte) error {
		copy(b, text[addr-recordBase:])
		return nil
	}}
	v.now.Store(&snapshot{pieces: []*piece{p}, owners: []owner{{p.where[0], p}}, patches: Always})
	return Tracing{v}, text
}

// TestRecordCode: the copy of a function that records an event includes its other parts, branches to the same places, and calls the
// replacements of the ring buffer. A WARN becomes a no-op, and a BUG a loop.
func TestRecordCode(t *testing.T) {
	sites := []site{{uint64(recordBase) + 11, 2, Bug}, {uint64(recordBase) + 15, 2, Bug}, {uint64(recordBase) + 29, 5, StaticCall}}
	v, text := recordView(t, sites, recordBase+11)
	const at, take, give = guest.GVA(0xffffffff82000000), guest.GVA(0xffffffff82001000), guest.GVA(0xffffffff82001100)
	got, err := v.RecordCode(Event{System: "s", Name: "x", Record: recordBase}, at, take, give)
	if err != nil {
		t.Fatal(err)
	}
	want := append(bytes.Clone(text[:40]), text[0x1000:0x100b]...)
	rel := func(off int, end, to guest.GVA) { binary.LittleEndian.PutUint32(want[off:], uint32(to-end)) }
	rel(1, at+5, take)
	rel(7, at+11, at+41)
	want[11], want[12], want[15], want[16] = 0x90, 0x90, 0xeb, 0xfe
	rel(19, at+23, recordBase+23+0x10)
	rel(25, at+29, recordBase+29+0x20)
	rel(35, at+39, give)
	rel(42, at+46, otherCode)
	rel(47, at+51, at+11)
	if !bytes.Equal(got, want) {
		t.Errorf("the copy is\n% x\nwant\n% x", got, want)
	}

	// A function that jumps to one with the same code.
	got, err = v.RecordCode(Event{Record: recordSame}, at, take, give)
	if err != nil || len(got) != 56 || got[0] != 0xe9 || binary.LittleEndian.Uint32(got[1:]) != 0 {
		t.Errorf("of the same code: % x, %v", got, err)
	}

	for _, c := range []struct {
		site site
		want string
	}{
		{site{uint64(recordBase) + 13, 2, JumpLabel}, "at 0xd, 74 02: the kernel patches it (jump_label)"},
		{site{uint64(recordBase) + 13, 2, StaticCall}, "the kernel patches it (static_call)"},
	} {
		v, _ := recordView(t, []site{c.site}, recordBase+11)
		if _, err := v.RecordCode(Event{Record: recordBase}, at, take, give); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.site, err, c.want)
		}
	}
	if _, err := v.RecordCode(Event{Record: otherCode}, at, take, give); err == nil {
		t.Error("a function that does not record was copied")
	}
	if _, err := v.RecordCode(Event{Record: recordBase}, 0x7f00_0000_0000, take, give); err == nil || !strings.Contains(err.Error(), "out of reach") {
		t.Errorf("far away: %v", err)
	}
}
