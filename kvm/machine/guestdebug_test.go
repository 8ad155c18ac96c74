package machine

import (
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// brokenCode runs a loop, with a breakpoint in its own debug registers at an address there, which is at brokenAt. Its handler of
// #DB counts, and lets the instruction run.
var brokenCode = asm(
	[]byte{0x48, 0xb8}, binary.LittleEndian.AppendUint64(nil, tinyData+0x200), // 00 mov $,%rax
	[]byte{
		0x0f, 0x01, 0x18, // 0a lidt (%rax)
		0x48, 0xc7, 0xc0, 0, 0, 0, 0, // 0d mov $,%rax
		0x0f, 0x23, 0xc0, // 14 mov %rax,%db0
		0xb8, 0x01, 0x04, 0, 0, // 17 mov $0x401,%eax
		0x0f, 0x23, 0xf8, // 1c mov %rax,%db7
		0x49, 0xc7, 0xc2, brokenLoops, 0, 0, 0, // 1f mov $,%r10
		0x48, 0xff, 0xc3, // 26 inc %rbx
		0x50,                   // 29 push %rax
		0x4a, 0x8d, 0x14, 0x13, // 2a lea (%rbx,%r10),%rdx
		0x58,             // 2e pop %rax
		0x48, 0x01, 0xd6, // 2f add %rdx,%rsi
		0x31, 0xc0, // 32 xor %eax,%eax
		0x0f, 0xa2, // 34 cpuid
		0x41, 0xff, 0xca, // 36 dec %r10d
		0x75, 0xeb, // 39 jnz 26
		0x44, 0x89, 0xc0, // 3b mov %r8d,%eax
		0xe7, guest.PortExit, // 3e out %eax,$0xf4
		0xeb, 0xfe, // 40 jmp 40
		0x49, 0xff, 0xc0, // 42 inc %r8: of #DB
		0x81, 0x4c, 0x24, 0x10, 0, 0, 1, 0, // 45 orl $RF,16(%rsp)
		0x48, 0xcf, // 4d iretq
	},
)

const (
	brokenLoops   = 8
	brokenAt      = 0x10 // the operand
	brokenHandler = 0x42
)

// brokenOffs are the instructions of the loop.
var brokenOffs = []int{0x26, 0x29, 0x2a, 0x2e, 0x2f, 0x32, 0x34, 0x36, 0x39}

// TestGuestBreaks: a guest with a breakpoint in its own debug registers has each of its debug exceptions beside a probe, at its
// instruction or another: by int3, however the displaced instruction is executed, and at a jump. An instruction that a jump
// displaces executes elsewhere: there, as with the kernel's optimized kprobes, it has none.
func TestGuestBreaks(t *testing.T) {
	runs := func(at, probed int, jump bool) (exceptions int, hits uint64, optimized bool) {
		t.Helper()
		code := append([]byte{}, brokenCode...)
		binary.LittleEndian.PutUint32(code[brokenAt:], uint32(tinyText&0xffff_ffff)+uint32(at))
		m := newMachine(t, Config{Image: tinyGuest(t, code, nil, tinySym{"broken", tinyText, uint64(len(code))}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
		var idt [0x210]byte
		guest.PutGate(idt[16*insn.VectorDB:], tinyText+brokenHandler, 0)
		binary.LittleEndian.PutUint16(idt[0x200:], 16*4-1)
		binary.LittleEndian.PutUint64(idt[0x202:], tinyData)
		if err := m.Look(func(l *Look) error { return l.Write(0, tinyData, idt[:]) }); err != nil {
			t.Fatal(err)
		}
		p := &probe.Kprobe{Addr: tinyText + guest.GVA(probed), Pre: func(*probe.Context) int { return 0 }}
		if probed != 0 {
			if err := m.Engine().SetOptimization(jump); err != nil {
				t.Fatal(err)
			}
			if cannotStop(t, m, m.Engine().Register(p)) {
				t.FailNow()
			}
			if jump {
				if err := m.Engine().Optimize(); err != nil {
					t.Fatal(err)
				}
				i, _ := m.Engine().Info(p)
				optimized = i.Optimized
			}
		}
		s := run(t, m)
		if s.Phase != PhaseExited {
			t.Fatalf("breakpoint at %#x, probe at %#x, jump %v: %+v", at, probed, jump, s)
		}
		stats, _, _ := m.Engine().Stats(p)
		return int(s.ExitCode), stats.Hits, optimized
	}
	if n, _, _ := runs(brokenOffs[0], 0, false); n == 0 {
		t.Log("this host's guests have no breakpoints of their own")
		return
	}
	jumps := 0
	for _, at := range brokenOffs {
		if n, _, _ := runs(at, 0, false); n != brokenLoops {
			t.Fatalf("without a probe: %d exceptions at %#x", n, at)
		}
		for _, probed := range brokenOffs {
			for _, jump := range []bool{false, true} {
				n, hits, optimized := runs(at, probed, jump)
				want := brokenLoops
				if optimized {
					jumps++
					if at > probed && at < probed+insn.JmpLen {
						want = 0
					}
				}
				if n != want || hits != brokenLoops {
					t.Errorf("breakpoint at %#x, probe at %#x, jump %v: %d exceptions, want %d; %d hits", at, probed, optimized, n, want, hits)
				}
			}
		}
	}
	t.Logf("%d of the probes were jumps", jumps)
}
