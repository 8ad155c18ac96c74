package machine

import (
	"fmt"

	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// msrTSC is IA32_TIME_STAMP_COUNTER (SDM Vol. 4, table 2-2): what rdtsc reads.
const msrTSC = 0x10

// TSC returns what vCPU 0's time stamp counter shows, and the time on the clock
// now at that moment. The world is stopped meanwhile. Errors are those of Stop
// and of KVM_GET_MSRS.
func (m *Machine) TSC(now func() int64) (tsc uint64, at int64, err error) {
	err = m.Stop(func(probe.World) error {
		msrs := []kvm.MSR{{Index: msrTSC}}
		before := now()
		if err := m.vcpus[0].kvm.GetMSRs(msrs); err != nil {
			return fmt.Errorf("time stamp counter: %w", err)
		}
		tsc, at = msrs[0].Data, before+(now()-before)/2
		return nil
	})
	return tsc, at, err
}
