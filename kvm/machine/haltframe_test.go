package machine

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// haltFrame loads an IDT whose descriptor is at tinyData+0x300, waits in hlt, and ends with the lower half of the address
// that the interrupt's frame has as its exit code.
var haltFrame = append(append([]byte{0x48, 0xb8}, binary.LittleEndian.AppendUint64(nil, tinyData+0x300)...), // 00 mov $,%rax
	0x0f, 0x01, 0x18, // 0a lidt (%rax)
	0xfb,       // 0d sti
	0xf4,       // 0e hlt
	0xfa,       // 0f cli
	0x89, 0xd8, // 10 mov %ebx,%eax
	0xe7, guest.PortExit, // 12 out %eax,$0xf4
	0xeb, 0xf8, // 14 jmp 0e
	0x48, 0x8b, 0x1c, 0x24, // 16 mov (%rsp),%rbx
	0x48, 0xcf, // 1a iretq
)

// TestInterruptedHalt: the interrupt that ends a probed hlt returns to the instruction that follows it, as without a probe,
// and not to the engine's copy.
func TestInterruptedHalt(t *testing.T) {
	for _, probed := range []bool{false, true} {
		m := newMachine(t, Config{Image: tinyGuest(t, haltFrame, nil, tinySym{"waits", tinyText, uint64(len(haltFrame))}), Memory: 16 << 20, Tick: 10 * time.Millisecond})
		k := &probe.Kprobe{Addr: tinyText + 0x0e, Pre: func(*probe.Context) int { return 0 }}
		if probed && cannotStop(t, m, m.Engine().Register(k)) {
			return
		}
		var idt [0x30a]byte
		guest.PutGate(idt[16*guest.TimerVector:], tinyText+0x16, 0)
		binary.LittleEndian.PutUint16(idt[0x300:], 16*(guest.TimerVector+1)-1)
		binary.LittleEndian.PutUint64(idt[0x302:], tinyData)
		if err := m.Look(func(l *Look) error { return l.Write(0, tinyData, idt[:]) }); err != nil {
			t.Fatal(err)
		}
		const after = tinyText + 0x0f
		if s := run(t, m); s.Phase != PhaseExited || s.ExitCode != after&0xffffffff {
			t.Errorf("probed %v: %s, the frame has %#x, want %#x", probed, s.Phase, s.ExitCode, uint32(after&0xffffffff))
		}
	}
}
