package machine

import (
	"errors"
	"fmt"
	"math"

	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// msrTSC is IA32_TIME_STAMP_COUNTER (SDM Vol. 4, table 2-2), the counter that
// rdtsc reads.
const msrTSC = 0x10

// Clock relates the guest's time stamp counter, which is the same on all vCPUs,
// to one of the host's clocks.
type Clock struct {
	TSC uint64 // its value
	At  int64  // on the host's clock, at that moment
	KHz uint64 // its frequency

	// Counter returns the counter's present value, until the guest sets it or boots
	// again. Any goroutine may call it, and no vCPU has to stop.
	Counter func() uint64
}

// clockReadings is how many times the clocks are read. The fastest reading is
// used, and its error is at most half its duration, however long others took on
// a busy host.
const clockReadings = 8

// Clock reads the guest's time stamp counter and, at the same moment, the host's
// clock now. The world is stopped during the reading. It fails if the host does
// not report the frequency (KVM_GET_TSC_KHZ).
func (m *Machine) Clock(now func() int64) (c Clock, err error) {
	if c.KHz = m.tscKHz.Load(); c.KHz == 0 {
		return c, errors.New("this host does not tell the frequency of the guest's time stamp counter (KVM_GET_TSC_KHZ)")
	}
	err = m.target().Stop(func(probe.World) error {
		msrs := []kvm.MSR{{Index: msrTSC}}
		best, closest := int64(math.MaxInt64), uint64(math.MaxUint64)
		for range clockReadings {
			before, tsc := now(), kvm.ReadTSC()
			if err := m.vcpus[0].kvm.GetMSRs(msrs); err != nil {
				return fmt.Errorf("time stamp counter: %w", err)
			}
			counts := kvm.ReadTSC() - tsc
			if took := now() - before; took < best {
				best, c.TSC, c.At = took, msrs[0].Data, before+took/2
			}
			if counts < closest {
				closest = counts
				offset := msrs[0].Data - (tsc + counts/2)
				c.Counter = func() uint64 { return kvm.ReadTSC() + offset }
			}
		}
		return nil
	})
	return c, err
}
