package machine

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// outAL is out %al, $port.
func outAL(port byte) []byte { return []byte{0xe6, port} }

// TestPortHome: port 0xf8 tells kernel code of the guest where an address in the
// engine's code stands in its own text, and leaves any other address.
func TestPortHome(t *testing.T) {
	for _, ours := range []bool{true, false} {
		m := newMachine(t, Config{Memory: 16 << 20, Tick: -1, Image: tinyGuest(t, asm(
			[]byte{0x48, 0xa1}, binary.LittleEndian.AppendUint64(nil, tinyData), // movabs tinyData, %rax
			outAL(guest.PortHome), []byte{0xe7, guest.PortExit}, hltForever), nil, tinySym{"f", tinyText, 10})})
		want := guest.GVA(tinyData + 8)
		ask := want
		if ours {
			want = tinyText
			if err := m.Engine().Register(&probe.Kprobe{Addr: tinyText, Pre: func(*probe.Context) int { return 0 }}); err != nil {
				t.Fatal(err)
			}
			ask = slotOf(t, m, want)
		}
		if err := m.Target().WriteMemory(0, tinyData, binary.LittleEndian.AppendUint64(nil, uint64(ask))); err != nil {
			t.Fatal(err)
		}
		if s := run(t, m); s.Phase != PhaseExited || s.ExitCode != uint32(want) {
			t.Errorf("asked for %v: the guest is %v with %#x, want %#x", ask, s.Phase, s.ExitCode, uint32(want))
		}
	}
}

// slotOf returns an address in the engine's code that stands for addr.
func slotOf(t *testing.T, m *Machine, addr guest.GVA) guest.GVA {
	t.Helper()
	for a := m.exec.kernel.GVA; a != m.exec.kernel.GVA+guest.GVA(m.exec.kernel.Size); a++ {
		if m.engine.InSlot(a) && m.engine.Home(a) == addr {
			return a
		}
	}
	t.Fatalf("nothing in the engine's code stands for %v", addr)
	return 0
}

// TestPortText: a guest that changes the immediate of a probed instruction and says
// so gets what it has written, whatever stood there for the probe.
func TestPortText(t *testing.T) {
	for _, jump := range []bool{false, true} {
		image := tinyGuest(t, asm(
			[]byte{0xeb, 0x0c}, // jmp over the function
			[]byte{0xbb, 1, 0, 0, 0, 0x89, 0xd8, 0x90, 0x90, 0x90, 0x90, 0xc3}, // f: mov $1, %ebx; mov %ebx, %eax; nops; ret
			[]byte{0xc6, 0x04, 0x25, 0x03, 0x00, tinyPhys >> 16, 0x00, 0x07},   // movb $7, f+1, by the identity map
			outAL(guest.PortText), []byte{0xe8, 0xe5, 0xff, 0xff, 0xff}, // call f
			[]byte{0xe7, guest.PortExit}, hltForever), nil, tinySym{"f", tinyText + 2, 12})
		m := newMachine(t, Config{Memory: 16 << 20, Tick: -1, Image: image})
		k := &probe.Kprobe{Addr: tinyText + 2, Pre: func(*probe.Context) int { return 0 }}
		if err := m.Engine().Register(k); err != nil {
			t.Fatal(err)
		}
		if jump {
			if err := m.Engine().Optimize(); err != nil {
				t.Fatal(err)
			}
			if i, _ := m.Engine().Info(k); !i.Optimized {
				t.Fatalf("no jump: %v", i)
			}
		}
		if s := run(t, m); s.Phase != PhaseExited || s.ExitCode != 7 {
			t.Errorf("jump %v: the guest is %v with %#x, want 7", jump, s.Phase, s.ExitCode)
		}
		if i, _ := m.Engine().Info(k); !i.Changed || i.Stats.Hits != 0 {
			t.Errorf("jump %v: %v, %d hits, want a site whose text has changed, and none", jump, i, i.Stats.Hits)
		}
		got := make([]byte, 5)
		if err := m.Target().ReadMemory(0, tinyText+2, got); err != nil || !bytes.Equal(got, []byte{0xbb, 7, 0, 0, 0}) {
			t.Errorf("jump %v: the text is % x (%v)", jump, got, err)
		}
	}
}

// TestInterruptForwarded: an interrupt that is handed on as if it were an exception
// stays as it is, and the log says so once.
func TestInterruptForwarded(t *testing.T) {
	var log bytes.Buffer
	forward := asm(outAL(guest.PortFault),
		[]byte{0x48, 0x83, 0x3c, 0x24, guest.TimerVector}, []byte{0x75, 0x01}, // cmpq $32, (%rsp); jne over the nop
		[]byte{0x90})
	m := newMachine(t, Config{Memory: 16 << 20, Tick: -1, Log: slog.New(slog.NewTextHandler(&log, nil)), Image: tinyGuest(t, asm(
		[]byte{0x6a, guest.SelKernelData, 0x6a, 0x00, 0x6a, 0x02, 0x6a, guest.SelKernelCode}, // push SS, RSP, RFLAGS, CS
		[]byte{0x48, 0xb8}, binary.LittleEndian.AppendUint64(nil, tinyText), []byte{0x50, 0x6a, 0x00, 0x6a, guest.TimerVector}, // push RIP, error code, vector
		forward, forward, []byte{0x8b, 0x04, 0x24, 0xe7, guest.PortExit}, hltForever), nil)})
	if s := run(t, m); s.Phase != PhaseExited || s.ExitCode != guest.TimerVector {
		t.Errorf("the guest is %v with %#x, want its vector", s.Phase, s.ExitCode)
	}
	if n := strings.Count(log.String(), "forwards an interrupt"); n != 1 {
		t.Errorf("%d lines of the log say so:\n%s", n, &log)
	}
}
