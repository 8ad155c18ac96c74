package machine

import (
	"errors"
	"fmt"
	"math"

	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// msrTSC is IA32_TIME_STAMP_COUNTER (SDM Vol. 4, table 2-2): what rdtsc reads.
const msrTSC = 0x10

// Clock relates the guest's time stamp counter, the same on all vCPUs, to a clock
// of the host's.
type Clock struct {
	TSC uint64 // what it showed
	At  int64  // on the host's clock, at that moment
	KHz uint64 // its frequency
}

// clockReadings is how many times the clocks are read: the reading that took least is off by
// half of that, however long others were held up on a busy host.
const clockReadings = 8

// Clock reads the guest's time stamp counter, and the host's clock now at that
// moment. The world is stopped meanwhile. It fails where the host does not tell the
// frequency (KVM_GET_TSC_KHZ).
func (m *Machine) Clock(now func() int64) (c Clock, err error) {
	if c.KHz = m.tscKHz.Load(); c.KHz == 0 {
		return c, errors.New("this host does not tell the frequency of the guest's time stamp counter (KVM_GET_TSC_KHZ)")
	}
	err = m.target().Stop(func(probe.World) error {
		msrs := []kvm.MSR{{Index: msrTSC}}
		best := int64(math.MaxInt64)
		for range clockReadings {
			before := now()
			if err := m.vcpus[0].kvm.GetMSRs(msrs); err != nil {
				return fmt.Errorf("time stamp counter: %w", err)
			}
			if took := now() - before; took < best {
				best, c.TSC, c.At = took, msrs[0].Data, before+took/2
			}
		}
		return nil
	})
	return c, err
}
