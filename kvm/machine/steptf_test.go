package machine

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// traced loads an IDT whose descriptor is at tinyData+0x200, and goes around a loop.
var traced = append(append([]byte{0x48, 0xb8}, binary.LittleEndian.AppendUint64(nil, tinyData+0x200)...), // 00 mov $,%rax
	0x0f, 0x01, 0x18, // 0a lidt (%rax)
	0x53,                   // 0d push %rbx
	0x48, 0x8b, 0x0c, 0x24, // 0e mov (%rsp),%rcx
	0x9c,                   // 12 pushf
	0x5a,                   // 13 pop %rdx
	0x48, 0x8d, 0x71, 0x01, // 14 lea 1(%rcx),%rsi
	0xcc,       // 18 int3
	0x5b,       // 19 pop %rbx
	0xeb, 0xf1, // 1a jmp 0d
	0x49, 0xff, 0xc0, // 1c inc %r8: of #DB
	0x48, 0xcf, // 1f iretq
	0x49, 0xff, 0xc1, // 21 inc %r9: of #BP
	0x48, 0xcf, // 24 iretq
)

// TestStepTraced steps through code that the guest itself single-steps, and through its own int3: a step is one instruction, behind
// which the vCPU stands at the first one of the guest's handler, as behind any exception.
func TestStepTraced(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, traced, nil, tinySym{"traced", tinyText, uint64(len(traced))}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	ctx := patience.Context(t)
	// No jump fits there, which a host that serves no int3s could have.
	k := &probe.Kprobe{Name: "can", Addr: tinyText + 0x1a, Pre: func(*probe.Context) int { return 0 }}
	if cannotStop(t, m, m.Engine().Register(k)) {
		return
	}
	if err := m.Engine().Unregister(k); err != nil {
		t.Fatal(err)
	}
	const db, bp = 0x1c, 0x21
	var idt [0x210]byte
	guest.PutGate(idt[16*x86.VectorDB:], tinyText+db, 0)
	guest.PutGate(idt[16*x86.VectorBP:], tinyText+bp, 0)
	binary.LittleEndian.PutUint16(idt[0x200:], 16*4-1)
	binary.LittleEndian.PutUint64(idt[0x202:], tinyData)
	change := func(f func(*Look) error) {
		t.Helper()
		if err := m.Look(f); err != nil {
			t.Fatal(err)
		}
	}
	setTF := func(on bool) {
		t.Helper()
		change(func(l *Look) error {
			r, _, err := l.GeneralRegisters(0)
			if err != nil {
				return err
			}
			if r.RFLAGS &^= x86.FlagTF; on {
				r.RFLAGS |= x86.FlagTF
			}
			return l.setRegs(0, r)
		})
	}
	change(func(l *Look) error { return l.Write(0, tinyData, idt[:]) })
	step := func(want guest.GVA) probe.Regs { t.Helper(); return stepTo(ctx, t, m, want) }
	step(0x0a)
	step(0x0d)
	var dbs, bps uint64
	// handler goes through one of the guest's, and back to where it was interrupted.
	handler := func(at, back guest.GVA, count *uint64, tf bool) {
		t.Helper()
		r := registers(t, m, 0).Regs
		if r.RFLAGS&x86.FlagTF != 0 {
			t.Errorf("the handler at +%#x has TF set", uint64(at))
		}
		*count++
		if r = step(at + 3); r.R8 != dbs || r.R9 != bps {
			t.Errorf("at +%#x: %d #DBs and %d #BPs, want %d and %d", uint64(back), r.R8, r.R9, dbs, bps)
		}
		if r = step(back); r.RFLAGS&x86.FlagTF != 0 != tf {
			t.Errorf("back at +%#x: flags %#x", uint64(back), r.RFLAGS)
		}
	}
	for range 3 {
		setTF(true)
		for _, next := range []guest.GVA{0x0e, 0x12, 0x13, 0x14, 0x18} {
			step(db)
			handler(db, next, &dbs, true)
		}
		if r := registers(t, m, 0).Regs; r.RDX&x86.FlagTF == 0 || r.RCX+1 != r.RSI {
			t.Errorf("%+v", r)
		}
		step(bp) // an int3 has no trap behind it
		handler(bp, 0x19, &bps, true)
		for _, next := range []guest.GVA{0x1a, 0x0d} {
			step(db)
			handler(db, next, &dbs, true)
		}
		setTF(false)
		for _, next := range []guest.GVA{0x0e, 0x12, 0x13, 0x14, 0x18} {
			step(next)
		}
		if r := registers(t, m, 0).Regs; r.RDX&x86.FlagTF != 0 {
			t.Errorf("%+v", r)
		}
		step(bp)
		handler(bp, 0x19, &bps, false)
		step(0x1a)
		step(0x0d)
	}
	// A probe is hit once, whatever comes behind its instruction.
	hits := 0
	k = &probe.Kprobe{Name: "on", Addr: tinyText + 0x0e, Pre: func(*probe.Context) int { hits++; return 0 }}
	if err := m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	step(0x0e)
	setTF(true)
	step(db)
	handler(db, 0x12, &dbs, true)
	if hits != 1 {
		t.Errorf("%d hits", hits)
	}
}

// stepTo steps vCPU 0 of a tiny guest once, to an offset of its text, and returns the registers there.
func stepTo(ctx context.Context, t *testing.T, m *Machine, want guest.GVA) probe.Regs {
	t.Helper()
	if did, err := m.Step(ctx, 0, 1); did != 1 || err != nil {
		t.Fatal(did, err)
	}
	r := registers(t, m, 0)
	if r.Live != tinyText+want {
		t.Fatalf("at +%#x, want +%#x", uint64(r.Live-tinyText), uint64(want))
	}
	return r.Regs
}
