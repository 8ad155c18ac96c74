package snapshot

import (
	"fmt"

	"github.com/guestprobe/guestprobe/kvm"
)

// features are the leaves of CPUID whose bits are features, which a guest may use that has seen them (SDM
// Vol. 2, CPUID; APM Vol. 3, appendix E), and which of their registers.
var features = map[[2]uint32][4]bool{ // by leaf and subleaf: EAX, EBX, ECX, EDX
	{1, 0}:          {false, false, true, true},
	{7, 0}:          {false, true, true, true},
	{7, 1}:          {true, false, false, true},
	{0xd, 0}:        {true, false, false, true}, // the possible bits of XCR0
	{0xd, 1}:        {true, false, true, true},
	{0x80000001, 0}: {false, false, true, true},
	{0x80000007, 0}: {false, false, false, true},
	{0x80000008, 0}: {false, true, false, false},
}

// Vendor returns the processor's maker, from CPUID.
func Vendor(entries []kvm.CPUIDEntry) string {
	for _, e := range entries {
		if e.Function == 0 {
			var b []byte
			for _, r := range []uint32{e.Ebx, e.Edx, e.Ecx} {
				b = append(b, byte(r), byte(r>>8), byte(r>>16), byte(r>>24))
			}
			return string(b)
		}
	}
	return ""
}

// MissingFeature returns the first feature that had has and host does not, as manuals write it, or "".
func MissingFeature(had, host []kvm.CPUIDEntry) string {
	here := map[[2]uint32][4]uint32{}
	for _, e := range host {
		here[[2]uint32{e.Function, e.Index}] = registers(e)
	}
	for _, e := range had {
		leaf := [2]uint32{e.Function, e.Index}
		now := here[leaf]
		for i, was := range registers(e) {
			if !features[leaf][i] {
				continue
			}
			for bit := range 32 {
				if (was&^now[i])>>bit&1 != 0 {
					return fmt.Sprintf("CPUID.%XH.%d:%s[%d]", e.Function, e.Index, []string{"EAX", "EBX", "ECX", "EDX"}[i], bit)
				}
			}
		}
	}
	return ""
}

func registers(e kvm.CPUIDEntry) [4]uint32 { return [4]uint32{e.Eax, e.Ebx, e.Ecx, e.Edx} }
