package kvm

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// arrival is the way in which a trap shows.
type arrival string

const (
	// byExit: KVM_EXIT_DEBUG, with RIP where the manuals have it.
	byExit arrival = "debug exit"
	// byEmulation: KVM's emulator gave up at the int3.
	byEmulation arrival = "failed emulation"
	// byVector: the guest's own IDT has it.
	byVector arrival = "guest's vector"
	// never: the guest runs on as if nothing had been asked for.
	never arrival = "no trap"
	// early: a debug exit that is not due yet, at an instruction that has not
	// been executed. It is done again at the next Run.
	early arrival = "debug exit before the instruction"
)

// trapArrivals is how the four traps show on a class of hosts, at CPL 0 and at
// CPL 3.
type trapArrivals struct {
	int3, step, hwbreak, watch [2]arrival

	earlySteps int // this many step exits come early in a guest that touches its pages for the first time
	why        string
}

// atBothLevels is an arrival at CPL 0 and 3.
func atBothLevels(a arrival) [2]arrival { return [2]arrival{a, a} }

// promised is what the KVM API document has (section 4.87), and processors
// with VMX or SVM do.
var promised = trapArrivals{int3: atBothLevels(byExit), step: atBothLevels(byExit), hwbreak: atBothLevels(byExit), watch: atBothLevels(byExit),
	why: "KVM API document, section 4.87"}

var arrivals = map[kvmtest.Host]trapArrivals{
	kvmtest.HostVMX:   promised,
	kvmtest.HostSVM:   promised,
	kvmtest.HostOther: promised,
	kvmtest.HostPVM: {
		int3: [2]arrival{byEmulation, byVector}, step: [2]arrival{byExit, byVector},
		hwbreak: [2]arrival{byExit, never}, watch: atBothLevels(never),
		why: "KVM's emulator runs CPL 0: it checks for steps and execute breakpoints itself, knows no int3, and no data breakpoints; " +
			"CPL 3 runs on the processor, where the hypervisor's guest debugging does not reach",
	},
	kvmtest.HostBochs: {
		int3: atBothLevels(byExit), step: atBothLevels(byExit), hwbreak: atBothLevels(byExit), watch: atBothLevels(byExit),
		earlySteps: 4,
		why: "Bochs has a step trap pending when a guest is entered again after an EPT violation: one for each " +
			"of the four pages that fetching the first instruction touches, three of tables and one of code",
	},
	kvmtest.HostQEMU: {
		int3: atBothLevels(byVector), step: atBothLevels(byExit), hwbreak: atBothLevels(never), watch: atBothLevels(never),
		why: "QEMU does not look at the intercept of #BP for an int3 (only for the exception of other causes), and does not " +
			"watch the addresses in a guest's debug registers when vmrun loads them",
	},
}

// runToTrap runs the guest to its next exit and says which trap that is. RIP is
// to be at want, and behind is what the guest's own handler should find in its
// frame.
func (b *box) runToTrap(vec uint8, want, after uint64) (arrival, error) {
	b.tb.Helper()
	e := b.run()
	rip := b.v.Regs().RIP
	switch {
	case e.Reason == ReasonDebug && e.Debug.Exception == uint32(vec) && e.Debug.PC == rip && rip == want:
		return byExit, nil
	case e.Reason == ReasonDebug && e.Debug.Exception == uint32(x86.VectorDB) && rip == boxCode:
		return early, nil
	case e.Reason == ReasonInternalError && e.Internal.Suberror == SuberrorEmulation && rip == want &&
		bytes.HasPrefix(e.Internal.EmulationBytes(), b.mem[rip:rip+2]):
		return byEmulation, nil
	case e.Reason == ReasonIO && e.IO.Port == uint16(vec) && b.get64(int(b.v.Regs().RSP)) == after:
		return byVector, nil
	case e.Reason == ReasonHLT, e.Reason == ReasonIO && e.IO.Port == uint16(x86.VectorGP):
		return never, nil // the hlt at the end, or its fault at CPL 3
	}
	return "", fmt.Errorf("%v, rip %#x; want a trap at %#x", e, rip, want)
}

// TestTraps holds the table above against the host, at both privilege levels
// and for both ways of passing registers.
func TestTraps(t *testing.T) {
	kvmtest.Require(t)
	host := kvmtest.DetectHost()
	expect := arrivals[host]
	const data = 0x30000
	for _, tt := range []struct {
		name  string
		code  []byte
		debug GuestDebug
		vec   uint8
		at    uint64 // offset of RIP at the exit
		frame uint64 // offset of RIP in the guest's own frame
		want  [2]arrival
		dr6   uint64 // bits that must be set
	}{
		{"int3", []byte{0x90, 0xcc, 0x90, 0xf4}, GuestDebug{Control: DebugEnable | DebugUseSWBP},
			x86.VectorBP, 1, 2, expect.int3, 0},
		{"step", []byte{0x90, 0x90, 0x90, 0xf4}, GuestDebug{Control: DebugEnable | DebugSingleStep},
			x86.VectorDB, 1, 1, expect.step, 1 << 14},
		{"execute breakpoint", []byte{0x90, 0x90, 0x90, 0xf4},
			GuestDebug{Control: DebugEnable | DebugUseHWBP, Reg: [8]uint64{0: boxCode + 2, 7: 1<<10 | 1<<1}}, // G0
			x86.VectorDB, 2, 2, expect.hwbreak, 1},
		{"watchpoint", []byte{0x88, 0x04, 0x25, 0x00, 0x00, 0x03, 0x00, 0x90, 0xf4}, // mov %al,0x30000
			GuestDebug{Control: DebugEnable | DebugUseHWBP, Reg: [8]uint64{1: data, 7: 1<<20 | 1<<10 | 1<<3}}, // G1, write, 1 byte
			x86.VectorDB, 7, 7, expect.watch, 2},
	} {
		for i, cpl := range []int{0, 3} {
			t.Run(fmt.Sprintf("%s/cpl%d", tt.name, cpl), func(t *testing.T) {
				runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
					b := newBoxAt(t, cpl, tt.code, opts...)
					if err := b.v.SetGuestDebug(tt.debug); err != nil {
						t.Fatal(err)
					}
					got, err := b.runToTrap(tt.vec, boxCode+tt.at, boxCode+tt.frame)
					for n := 0; got == early && err == nil; n++ {
						if n == expect.earlySteps {
							t.Fatalf("more than %d early exits: %v", n, &b.e)
						}
						got, err = b.runToTrap(tt.vec, boxCode+tt.at, boxCode+tt.frame)
					}
					if err != nil {
						t.Fatal(err)
					}
					if got != tt.want[i] {
						t.Fatalf("%s: %s; want %s (%s)", host, got, tt.want[i], expect.why)
					}
					if got == byExit && b.e.Debug.DR6&tt.dr6 != tt.dr6 {
						t.Errorf("dr6 %#x, want bits %#x", b.e.Debug.DR6, tt.dr6)
					}
				})
			})
		}
	}
}
