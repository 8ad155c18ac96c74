package machine

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// movRAX is movabs $v, %rax.
func movRAX(v uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{0x48, 0xb8}, v)
}

// userEntry goes to CPL3 at tinyUser: the frame, then iretq. Interrupts are off,
// except where the host would never come back from that (see spin; a pause at
// CPL3 does not help).
func userEntry() []byte {
	flags := []byte{0x68, 0x02, 0x00, 0x00, 0x00}
	if kvmtest.DetectHost() == kvmtest.HostBochs {
		flags[2] = 0x02 // IF
	}
	return asm(
		[]byte{0x6a, guest.SelUserData},      // push $SS
		[]byte{0x68, 0x00, 0x00, 0x40, 0x00}, // push $RSP
		flags,                                // push $RFLAGS
		[]byte{0x6a, guest.SelUserCode},      // push $CS
		[]byte{0x68, 0x00, 0x00, 0x40, 0x00}, // push $RIP: tinyUser
		[]byte{0x48, 0xcf},                   // iretq
	)
}

// TestHostileGuests runs guests that do what no guest should, and checks that
// the machine says what happened, answers, and closes.
func TestHostileGuests(t *testing.T) {
	var (
		loop     = []byte{0xeb, 0xfe}
		execArea = []byte{0x48, 0x8b, 0x47, guest.BootInfoKernelLo} // mov 48(%rdi), %rax
		clearWP  = asm(                                             // mov %cr0, %rcx; and $~WP, %ecx; mov %rcx, %cr0
			[]byte{0x0f, 0x20, 0xc1, 0x81, 0xe1, 0xff, 0xff, 0xfe, 0xff, 0x0f, 0x22, 0xc1})
		storeRAX = []byte{0x48, 0x89, 0x00} // mov %rax, (%rax)
		setCR3   = []byte{0x0f, 0x22, 0xd8} // mov %rax, %cr3
		// A 2 MiB page of nothing at 0xc0000000, in RAX.
		mapHole = asm(
			[]byte{0x0f, 0x20, 0xd8, 0x48, 0x8b, 0x00},             // mov %cr3, %rax; mov (%rax), %rax
			[]byte{0x48, 0x25, 0x00, 0xf0, 0xff, 0xff},             // and $-4096, %rax
			[]byte{0x48, 0xc7, 0x40, 0x18, 0x03, 0x30, 0x00, 0x00}, // movq $0x3003, 24(%rax)
			[]byte{0xb9, 0x83, 0x00, 0x00, 0xc0},                   // mov $0xc0000083, %ecx
			[]byte{0x48, 0x89, 0x0c, 0x25, 0x00, 0x30, 0x00, 0x00}, // mov %rcx, 0x3000
			[]byte{0xb8, 0x00, 0x00, 0x00, 0xc0})                   // mov $0xc0000000, %eax
	)
	const running Phase = PhaseRunning
	if kvmtest.DetectHost() == kvmtest.HostBochs {
		loop = spin // see there
	}
	for _, tc := range []struct {
		name  string
		code  []byte
		user  []byte
		phase Phase
		or    Phase       // the other possibility, if any
		kinds []CrashKind // one of them, with PhaseCrashed
		exit  uint32
		// readonly: needs read-only memory slots, which every host should have.
		readonly bool
	}{
		{name: "jump to garbage", code: asm(movRAX(0xdeadbeef000), []byte{0xff, 0xe0}), phase: PhaseCrashed, kinds: []CrashKind{CrashTripleFault}},
		{name: "jump to non-canonical", code: asm(movRAX(0x8000000000000000), []byte{0xff, 0xe0}), phase: PhaseCrashed, kinds: []CrashKind{CrashTripleFault}},
		{name: "ud2 without idt", code: []byte{0x0f, 0x0b}, phase: PhaseCrashed, kinds: []CrashKind{CrashTripleFault}},
		{name: "foreign int3 without idt", code: []byte{0xcc}, phase: PhaseCrashed, kinds: []CrashKind{CrashTripleFault, CrashBreakpoint}},
		{name: "cli hlt", code: hltForever, phase: running},
		{name: "loop at cpl0", code: loop, phase: running},
		{name: "loop at cpl3", code: userEntry(), user: loop, phase: running},
		{name: "privileged at cpl3", code: userEntry(), user: []byte{0xf4}, phase: PhaseCrashed, kinds: []CrashKind{CrashTripleFault}},
		// KVM may patch the instruction into the processor's own, which is a
		// page fault where the text is read-only.
		{name: "vmcall for ever", code: asm([]byte{0x0f, 0x01, 0xc1}, []byte{0xeb, 0xfb}), phase: running, or: PhaseCrashed},
		{name: "in for ever", code: []byte{0xe4, 0x42, 0xeb, 0xfc}, phase: running},
		{name: "in reads ones", code: asm([]byte{0x31, 0xc0, 0xe5, 0x42, 0xe7, guest.PortExit}, hltForever), phase: PhaseExited, exit: 0xffffffff},
		{name: "write to exec area", code: asm(execArea, storeRAX, exitCode(1), loop), phase: PhaseCrashed, kinds: []CrashKind{CrashTripleFault}},
		{name: "write to exec area without wp", code: asm(clearWP, execArea, storeRAX, []byte{0x8b, 0x00, 0xe7, guest.PortExit}, hltForever), phase: PhaseExited, readonly: true},
		{name: "cr3 to zeros", code: asm(movRAX(0x2000), setCR3, exitCode(1)), phase: PhaseCrashed, kinds: []CrashKind{CrashTripleFault}},
		{name: "cr3 outside memory", code: asm(movRAX(0x7f0000000000), setCR3, exitCode(1)), phase: PhaseCrashed},
		{name: "page tables that point to themselves", code: asm(
			[]byte{0x0f, 0x20, 0xd8},             // mov %cr3, %rax
			[]byte{0x48, 0x89, 0xc1},             // mov %rax, %rcx
			[]byte{0x48, 0x83, 0xc9, 0x03},       // or $3, %rcx
			[]byte{0xba, 0x00, 0x02, 0x00, 0x00}, // mov $512, %edx
			[]byte{0x48, 0x89, 0x08},             // 1: mov %rcx, (%rax)
			[]byte{0x48, 0x83, 0xc0, 0x08},       // add $8, %rax
			[]byte{0xff, 0xca, 0x75, 0xf5},       // dec %edx; jnz 1b
			setCR3WithRCX, loop), phase:          PhaseCrashed},
		{name: "breakpoint port with a bad frame", code: asm(
			[]byte{0x31, 0xe4, 0x48, 0xff, 0xcc},                                // xor %esp, %esp; dec %rsp
			[]byte{0xe6, guest.PortBreakpoint}, exitCode(7), hltForever), phase: PhaseExited, exit: 7},
		{name: "breakpoint port with nonsense", code: asm([]byte{0x48, 0x83, 0xec, 0x40}, []byte{0xe6, guest.PortBreakpoint}, exitCode(7)),
			phase: PhaseCrashed, kinds: []CrashKind{CrashBreakpoint}},
		{name: "fault port with nonsense", code: asm([]byte{0x48, 0x83, 0xec, 0x40}, []byte{0xe6, guest.PortFault}, exitCode(7), hltForever),
			phase: PhaseExited, exit: 7},
		{name: "exit by the smallest out", code: asm([]byte{0xb8, 0x78, 0x56, 0x34, 0x12, 0xe6, guest.PortExit}, hltForever), phase: PhaseExited, exit: 0x78},
		{name: "exit by a word out", code: asm([]byte{0xb8, 0x78, 0x56, 0x34, 0x12, 0x66, 0xe7, guest.PortExit}, hltForever), phase: PhaseExited, exit: 0x5678},
		{name: "mmio for ever", code: asm(mapHole, []byte{0x8b, 0x10, 0x89, 0x10, 0xeb, 0xfa}), phase: running},
		{name: "mmio reads ones", code: asm(mapHole, []byte{0x8b, 0x00, 0xe7, guest.PortExit}, hltForever), phase: PhaseExited, exit: 0xffffffff},
		{name: "rep outs without end", code: asm(
			[]byte{0x48, 0xc7, 0xc1, 0xff, 0xff, 0xff, 0x7f}, // mov $0x7fffffff, %rcx
			[]byte{0x31, 0xf6},                     // xor %esi, %esi
			[]byte{0xba, 0x42, 0, 0, 0},            // mov $0x42, %edx
			[]byte{0xf3, 0x6e, 0xeb, 0xf0}), phase: running, or: PhaseCrashed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t, Config{Image: tinyGuest(t, tc.code, tc.user), Memory: 16 << 20, Tick: -1})
			if tc.readonly && !m.Host().KVM.Readonly {
				t.Log("this host has no read-only memory slots")
				return
			}
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
			if tc.phase == running {
				// It must neither end nor stop answering.
				for range 5 {
					if tc.or == "" {
						awaitBusyOrHalted(m)
					}
					if err := m.Stop(doNothing); err != nil {
						t.Error(err)
					}
				}
				if s := m.State(); s.Phase != PhaseRunning && s.Phase != tc.or {
					t.Errorf("state %+v, want running", s)
				}
				return
			}
			s := waitEnd(t, m)
			if s.Phase != tc.phase || s.ExitCode != tc.exit {
				t.Errorf("phase %s, exit code %#x; want %s, %#x", s.Phase, s.ExitCode, tc.phase, tc.exit)
			}
			if s.Crash != nil {
				t.Logf("%v", s.Crash)
			}
			if tc.kinds != nil {
				found := false
				for _, k := range tc.kinds {
					found = found || s.Crash != nil && s.Crash.Kind == k
				}
				if !found {
					t.Errorf("crash %v, want one of %v", s.Crash, tc.kinds)
				}
			}
			if err := m.Resume(); err == nil || !strings.Contains(err.Error(), "reset it first") {
				t.Errorf("resume of a guest that has ended: %v", err)
			}
		})
	}
}

// setCR3WithRCX reloads CR3: mov %cr3, %rax; mov %rax, %cr3.
var setCR3WithRCX = []byte{0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8}

// awaitBusyOrHalted waits until no vCPU is parked any more.
func awaitBusyOrHalted(m *Machine) {
	for _, v := range m.State().VCPUs {
		for ; v.Activity == VCPUParked; v = m.State().VCPUs[v.ID] {
			breathe()
		}
	}
}

func doNothing(_ probe.World) error { return nil }

// TestReportFlood: a guest that reports failed checks for ever neither floods
// the log nor is it lost count of.
func TestReportFlood(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, asm([]byte{0xb8, 0x2a, 0, 0, 0, 0xe7, guest.PortReport, 0xeb, 0xfc}), nil), Memory: 16 << 20})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	wait := patience.Context(t)
	for m.State().Checks.Count < 1000 {
		select {
		case <-wait.Done():
			t.Fatal("no reports")
		default:
			if err := m.Stop(doNothing); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s := m.State(); s.Checks.Last != 0x2a || s.Phase != PhaseRunning {
		t.Errorf("state %+v", s)
	}
}
