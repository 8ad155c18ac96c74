package machine

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// brokenCode runs a loop, with two breakpoints in its own debug registers at addresses there, which are at brokenAt. Its handler
// of #DB counts, and lets the instruction run.
var brokenCode = asm(
	[]byte{0x48, 0xb8}, binary.LittleEndian.AppendUint64(nil, tinyData+0x200), // 00 mov $,%rax
	[]byte{
		0x0f, 0x01, 0x18, // 0a lidt (%rax)
		0x48, 0xc7, 0xc0, 0, 0, 0, 0, // 0d mov $,%rax
		0x0f, 0x23, 0xc0, // 14 mov %rax,%db0
		0x48, 0xc7, 0xc0, 0, 0, 0, 0, // 17 mov $,%rax
		0x0f, 0x23, 0xc8, // 1e mov %rax,%db1
		0xb8, 0x05, 0x04, 0, 0, // 21 mov $0x405,%eax
		0x0f, 0x23, 0xf8, // 26 mov %rax,%db7
		0x49, 0xc7, 0xc2, brokenLoops, 0, 0, 0, // 29 mov $,%r10
		0x48, 0xff, 0xc3, // 30 inc %rbx
		0x50,                   // 33 push %rax
		0x4a, 0x8d, 0x14, 0x13, // 34 lea (%rbx,%r10),%rdx
		0x58,             // 38 pop %rax
		0x48, 0x01, 0xd6, // 39 add %rdx,%rsi
		0x31, 0xc0, // 3c xor %eax,%eax
		0x0f, 0xa2, // 3e cpuid
		0x41, 0xff, 0xca, // 40 dec %r10d
		0x75, 0xeb, // 43 jnz 30
		0x44, 0x89, 0xc0, // 45 mov %r8d,%eax
		0xe7, guest.PortExit, // 48 out %eax,$0xf4
		0xeb, 0xfe, // 4a jmp 4a
		0x49, 0xff, 0xc0, // 4c inc %r8: of #DB
		0x81, 0x4c, 0x24, 0x10, 0, 0, 1, 0, // 4f orl $RF,16(%rsp)
		0x48, 0xcf, // 57 iretq
	},
)

const (
	brokenLoops   = 8
	brokenHandler = 0x4c
)

// brokenAt are the operands of what sets the breakpoints.
var brokenAt = [2]int{0x10, 0x1a}

// brokenOffs are the instructions of the loop.
var brokenOffs = []int{0x30, 0x33, 0x34, 0x38, 0x39, 0x3c, 0x3e, 0x40, 0x43}

// runBroken runs code with its handler of #DB, and a probe at an offset unless that is 0. It returns how many debug exceptions there were.
func runBroken(t *testing.T, code []byte, probed int, jump bool) (exceptions int, hits uint64, optimized bool) {
	t.Helper()
	t.Run(fmt.Sprintf("probe at %#x, jump %v", probed, jump), func(t *testing.T) { // so that its machine is closed
		m := newMachine(t, Config{Image: tinyGuest(t, code, nil, tinySym{"broken", tinyText, uint64(len(code))}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
		var idt [0x210]byte
		guest.PutGate(idt[16*x86.VectorDB:], tinyText+brokenHandler, 0)
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
			if err := m.Engine().Register(p); err != nil {
				t.Fatal(err)
			}
		}
		if probed != 0 && jump {
			if err := m.Engine().Optimize(); err != nil {
				t.Fatal(err)
			}
			i, _ := m.Engine().Info(p)
			optimized = i.Optimized
		}
		s := run(t, m)
		if s.Phase != PhaseExited {
			t.Fatalf("%+v", s)
		}
		stats, _, _ := m.Engine().Stats(p)
		exceptions, hits = int(s.ExitCode), stats.Hits
	})
	return exceptions, hits, optimized
}

// TestGuestBreaks: a guest with breakpoints in its own debug registers, at two instructions in a row, has each of its debug
// exceptions beside a probe, at one of them or another: by int3, however the displaced instruction is executed, and at a jump. An instruction that a jump
// displaces executes elsewhere: there, as with the kernel's optimized kprobes, it has none.
func TestGuestBreaks(t *testing.T) {
	runs := func(at [2]int, probed int, jump bool) (int, uint64, bool) {
		t.Helper()
		code := append([]byte{}, brokenCode...)
		for i, to := range brokenAt {
			binary.LittleEndian.PutUint32(code[to:], uint32(tinyText&0xffff_ffff)+uint32(at[i]))
		}
		return runBroken(t, code, probed, jump)
	}
	if n, _, _ := runs([2]int(brokenOffs), 0, false); n == 0 {
		t.Log("this host's guests have no breakpoints of their own")
		return
	}
	jumps := 0
	for i := range brokenOffs[1:] {
		at := [2]int(brokenOffs[i:])
		if n, _, _ := runs(at, 0, false); n != 2*brokenLoops {
			t.Fatalf("without a probe: %d exceptions at %#x", n, at)
		}
		for _, probed := range brokenOffs {
			for _, jump := range []bool{false, true} {
				n, hits, optimized := runs(at, probed, jump)
				want := 2 * brokenLoops
				if optimized {
					jumps++
					for _, at := range at {
						if at > probed && at < probed+x86.JmpLen {
							want -= brokenLoops
						}
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

// TestGuestBreaksData: a breakpoint of the guest's own for what its push writes, beside a probe: each write is an exception, but
// for the one of a push that the host emulates, which the processor does not see.
func TestGuestBreaksData(t *testing.T) {
	const push, dr7 = 0x33, 0x22 // offsets of the instruction, and of the operand for the register
	code := append([]byte{}, brokenCode...)
	copy(code[0x0d:], []byte{0x48, 0x8d, 0x44, 0x24, 0xf8, 0x66, 0x90}) // lea -8(%rsp),%rax; xchg %ax,%ax
	binary.LittleEndian.PutUint32(code[dr7:], 0x90401)                  // 8 bytes, writes
	if n, _, _ := runBroken(t, code, 0, false); n == 0 {
		t.Log("this host's guests have no breakpoints for data of their own")
		return
	} else if n != brokenLoops {
		t.Fatalf("without a probe: %d exceptions", n)
	}
	for _, probed := range brokenOffs {
		for _, jump := range []bool{false, true} {
			n, hits, optimized := runBroken(t, code, probed, jump)
			want := brokenLoops
			if probed == push && !optimized {
				want = 0
			}
			if n != want || hits != brokenLoops {
				t.Errorf("probe at %#x, jump %v: %d exceptions, want %d; %d hits", probed, optimized, n, want, hits)
			}
		}
	}
}
