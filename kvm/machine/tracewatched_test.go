package machine

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// tracedData is what tracedWrites accesses, and tracedLog where it notes its debug exceptions.
const (
	tracedData = 0x500010
	tracedLog  = tinyData + 0x300
)

// tracedWrites single-steps itself through accesses of tracedData.
var tracedWrites = asm(
	[]byte{0x48, 0xb8}, binary.LittleEndian.AppendUint64(nil, tinyData+0x200), // mov $,%rax
	[]byte{
		0x0f, 0x01, 0x18, // 0a lidt (%rax)
		0x48, 0xc7, 0xc3, tracedData & 0xff, tracedData >> 8 & 0xff, tracedData >> 16, 0, // 0d mov $,%rbx
		0x9c,                               // 14 pushf
		0x81, 0x0c, 0x24, 0x00, 0x01, 0, 0, // 15 orl $0x100,(%rsp)
		0x9d,             // 1c popf
		0x48, 0x89, 0x03, // 1d mov %rax,(%rbx)
		0x48, 0x8b, 0x0b, // 20 mov (%rbx),%rcx
		0x48, 0xff, 0x03, // 23 incq (%rbx)
		0x48, 0x87, 0x0b, // 26 xchg %rcx,(%rbx)
		0x48, 0x89, 0x83, 0xec, 0x0f, 0, 0, // 29 mov %rax,0xfec(%rbx), which ends in the next page
		0x88, 0x0b, // 30 mov %cl,(%rbx)
		0x88, 0x0b, // 32 mov %cl,(%rbx)
		0x9c,                                     // 34 pushf
		0x81, 0x24, 0x24, 0xff, 0xfe, 0xff, 0xff, // 35 andl $~0x100,(%rsp)
		0x9d,       // 3c popf
		0x88, 0x0b, // 3d mov %cl,(%rbx)
		0x44, 0x89, 0xc0, // 3f mov %r8d,%eax
		0xe7, guest.PortExit, // 42 out %eax,$0xf4
		0xeb, 0xfe, // 44 jmp 44
		0x49, 0xff, 0xc0, // 46 inc %r8: of #DB
		0x4c, 0x8b, 0x0c, 0x24, // 49 mov (%rsp),%r9
	},
	[]byte{0x4e, 0x89, 0x0c, 0xc5}, binary.LittleEndian.AppendUint32(nil, tracedLog&0xffff_ffff), // 4d mov %r9,tracedLog(,%r8,8)
	[]byte{0x48, 0xcf}, // iretq
)

// TestWatchTraced: code that single-steps itself has a debug exception behind each instruction whose access to a watched page
// the host does, too.
func TestWatchTraced(t *testing.T) {
	if kvmtest.DetectHost() == kvmtest.HostBochs {
		return // it tells some steps twice, without a watch as well
	}
	const db = 0x46
	runs := func(w *probe.Watch) (ends []uint64) {
		t.Helper()
		m := newMachine(t, Config{Image: tinyGuest(t, tracedWrites, nil, tinySym{"traced", tinyText, uint64(len(tracedWrites))}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
		var idt [0x210]byte
		guest.PutGate(idt[16*x86.VectorDB:], tinyText+db, 0)
		binary.LittleEndian.PutUint16(idt[0x200:], 16*4-1)
		binary.LittleEndian.PutUint64(idt[0x202:], tinyData)
		if err := m.Look(func(l *Look) error { return l.Write(0, tinyData, idt[:]) }); err != nil {
			t.Fatal(err)
		}
		if w != nil {
			if err := m.Engine().Watch(w); err != nil {
				t.Fatal(err)
			}
		}
		s := run(t, m)
		if s.Phase != PhaseExited {
			t.Fatalf("%+v", s)
		}
		var log [16 * 8]byte
		if err := m.Peek(tracedLog, log[:]); err != nil {
			t.Fatal(err)
		}
		for n := range min(int(s.ExitCode), 15) {
			ends = append(ends, binary.LittleEndian.Uint64(log[8*(n+1):])-tinyText)
		}
		if w != nil {
			if i, _ := m.Engine().WatchInfo(w); i.Stats.Hits == 0 || !i.Armed {
				t.Errorf("%+v", i)
			}
		}
		return ends
	}
	want := []uint64{0x20, 0x23, 0x26, 0x29, 0x30, 0x32, 0x34, 0x35, 0x3c, 0x3d}
	if diff := cmp.Diff(want, runs(nil)); diff != "" {
		t.Errorf("without a watch, (-want +got):\n%s", diff)
	}
	for _, access := range []probe.Access{probe.AccessRead, probe.AccessWrite, probe.AccessReadWrite} {
		if diff := cmp.Diff(want, runs(&probe.Watch{Addr: tracedData, Len: 8, Access: access, Emulate: true})); diff != "" {
			t.Errorf("watched for %v, (-want +got):\n%s", access, diff)
		}
	}
}

// TestStepDelivers: a step of a vCPU that an exception is on its way into leads to its handler, and executes nothing; the
// handler goes back to the instruction.
func TestStepDelivers(t *testing.T) {
	const ud = 0x1c
	code := append([]byte{}, traced...)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, tinySym{"traced", tinyText, uint64(len(code))}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	ctx := patience.Context(t)
	k := &probe.Kprobe{Name: "can", Addr: tinyText + 0x1a, Pre: func(*probe.Context) int { return 0 }}
	if cannotStop(t, m, m.Engine().Register(k)) {
		return
	}
	var idt [0x210]byte
	guest.PutGate(idt[16*6:], tinyText+ud, 0)
	binary.LittleEndian.PutUint16(idt[0x200:], 16*8-1)
	binary.LittleEndian.PutUint64(idt[0x202:], tinyData)
	if err := m.Look(func(l *Look) error { return l.Write(0, tinyData, idt[:]) }); err != nil {
		t.Fatal(err)
	}
	step := func(want guest.GVA) probe.Regs { t.Helper(); return stepTo(ctx, t, m, want) }
	step(0x0a)
	step(0x0d)
	// 0d is emulated on the caller's thread, and 12 on the vCPU's; 14 is executed in its place.
	for i, at := range []guest.GVA{0x0d, 0x0e, 0x12, 0x13, 0x14} {
		before := registers(t, m, 0).Regs
		if err := m.Stop(func(probe.World) error { return m.vcpus[0].kvm.InjectException(6, false, 0, 0) }); err != nil {
			t.Fatal(err)
		}
		r := step(ud)
		if r.R8 != uint64(i) || r.RSP >= before.RSP {
			t.Errorf("+%#x: %+v", uint64(at), r)
		}
		step(ud + 3)
		r = step(at)
		if r.R8 = before.R8; r != before {
			t.Errorf("+%#x: back with %+v, was %+v", uint64(at), r, before)
		}
		step([]guest.GVA{0x0e, 0x12, 0x13, 0x14, 0x18}[i])
	}
}

// faultsOnce reads what is not there. Its handler waits, and has it read something else.
var faultsOnce = asm(
	[]byte{0x48, 0xb8}, binary.LittleEndian.AppendUint64(nil, tinyData+0x200), // mov $,%rax
	[]byte{
		0x0f, 0x01, 0x18, // 0a lidt (%rax)
		0xbb, 0x00, 0x00, 0x00, 0x70, // 0d mov $0x70000000,%ebx
		0x8b, 0x03, // 12 mov (%rbx),%eax
		0x44, 0x89, 0xc0, // 14 mov %r8d,%eax
		0xe7, guest.PortExit, // 17 out %eax,$0xf4
		0xeb, 0xfe, // 19 jmp 19
		0x49, 0xff, 0xc0, // 1b inc %r8: of #PF
		0xf3, 0x90, // 1e pause (see spin)
		0x80, 0xb8, 0x00, 0x01, 0, 0, 0, // 20 cmpb $0,0x100(%rax)
		0x74, 0xf5, // 27 je 1e
		0x48, 0x89, 0xc3, // 29 mov %rax,%rbx
		0x48, 0x83, 0xc4, 0x08, // 2c add $8,%rsp
		0x48, 0xcf, // 30 iretq
	})

// TestStepBackToSlot steps through a handler that goes back to a probed instruction where that is executed in the engine's memory: the
// steps end there, and the hit has its end when the guest goes on.
func TestStepBackToSlot(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, faultsOnce, nil, tinySym{"faults", tinyText, uint64(len(faultsOnce))}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	pre, post := 0, 0
	k := &probe.Kprobe{Addr: tinyText + 0x12, Pre: func(*probe.Context) int { pre++; return 0 }, Post: func(*probe.Context) { post++ }}
	if cannotStop(t, m, m.Engine().Register(k)) {
		return
	}
	write := func(at guest.GVA, b []byte) {
		t.Helper()
		if err := m.Look(func(l *Look) error { return l.Write(0, at, b) }); err != nil {
			t.Fatal(err)
		}
	}
	var idt [0x210]byte
	guest.PutGate(idt[16*x86.VectorPF:], tinyText+0x1b, 0)
	binary.LittleEndian.PutUint16(idt[0x200:], 16*16-1)
	binary.LittleEndian.PutUint64(idt[0x202:], tinyData)
	write(tinyData, idt[:])
	ctx := patience.Context(t)
	// It may pause in the engine's memory, too, which is not in the handler.
	// A slow host does nothing in a short time.
	wait := 20 * time.Microsecond
	for at := guest.GVA(0); at < 0x1b || at >= guest.GVA(len(faultsOnce)); at = registers(t, m, 0).Live - tinyText {
		if err := m.Resume(); err != nil || ctx.Err() != nil {
			t.Fatal(err, ctx.Err())
		}
		time.Sleep(wait)
		wait = min(2*wait, time.Second)
		if err := m.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	back := guest.GVA(registers(t, m, 0).Regs.RIP)
	write(tinyData+0x300, []byte{1})
	did, err := m.Step(ctx, 0, 100)
	if r := registers(t, m, 0); m.Engine().InSlot(r.Live) {
		if did < 4 || !errors.Is(err, ErrInEngine) {
			t.Errorf("from %v: %d steps, %v, at %v", back, did, err, r.Live)
		}
	} else if r.Live != tinyText+0x19 { // this host shows the engine such a fault, or steps in place
		t.Errorf("from %v: %d steps, %v, at %v", back, did, err, r.Live)
	}
	if m.State().Phase == PhasePaused {
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	if s := waitEnd(t, m); s.Phase != PhaseExited || s.ExitCode != 1 || pre != 1 || post != 1 {
		t.Errorf("%+v, %d hits, %d ends", s, pre, post)
	}
}

// TestSaveGivenBreakpoint: a snapshot of a vCPU that is just being given its guest's own int3 has it at that instruction.
func TestSaveGivenBreakpoint(t *testing.T) {
	const bp, at = 0x21, 0x18
	m := newMachine(t, Config{Image: tinyGuest(t, traced, nil, tinySym{"traced", tinyText, uint64(len(traced))}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	ctx := patience.Context(t)
	k := &probe.Kprobe{Name: "can", Addr: tinyText + 0x1a, Pre: func(*probe.Context) int { return 0 }}
	if cannotStop(t, m, m.Engine().Register(k)) {
		return
	}
	var idt [0x210]byte
	guest.PutGate(idt[16*x86.VectorBP:], tinyText+bp, 0)
	binary.LittleEndian.PutUint16(idt[0x200:], 16*4-1)
	binary.LittleEndian.PutUint64(idt[0x202:], tinyData)
	if err := m.Look(func(l *Look) error { return l.Write(0, tinyData, idt[:]) }); err != nil {
		t.Fatal(err)
	}
	if did, err := m.Step(ctx, 0, 7); err != nil {
		t.Fatal(did, err)
	}
	before := registers(t, m, 0)
	if before.Live != tinyText+at {
		t.Fatalf("at +%#x", uint64(before.Live-tinyText))
	}
	if err := m.Stop(func(probe.World) error {
		v := m.vcpus[0]
		v.trap = arrival{via: viaExit, state: v.state(), trap: probe.Trap{Kind: probe.TrapBreakpoint}}
		v.passBreakpoint()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s := save(t, m)
	if rip := s.CPUs[0].Regs.RIP; rip != tinyText+at {
		t.Errorf("saved at %#x", rip)
	}
	for _, how := range []string{"that was saved", "from the snapshot"} {
		if did, err := m.Step(ctx, 0, 1); did != 1 || err != nil {
			t.Fatal(how, did, err)
		}
		r := registers(t, m, 0)
		var frame [8]byte
		if err := m.Peek(guest.GVA(r.Regs.RSP), frame[:]); err != nil {
			t.Fatal(err)
		}
		if back := binary.LittleEndian.Uint64(frame[:]); r.Live != tinyText+bp || back != tinyText+at+1 {
			t.Errorf("the guest %s is at +%#x and goes back to +%#x", how, uint64(r.Live-tinyText), back-tinyText)
		}
		if err := m.ResetTo(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
}
