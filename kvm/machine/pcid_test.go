package machine

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestReturnsByOtherPCID: bits of CR3 that do not belong to the address (PCID, PWT, PCD: SDM Vol. 3, table 4-12) can change between a call of a
// function of user code and its return, as in a Linux guest that ran another process in between. The address space is still the
// same: calls are followed to their returns, and handlers see the same page tables.
func TestReturnsByOtherPCID(t *testing.T) {
	const flags = 3 << 3 // PWT and PCD, which all processors support
	rounds := "rounds=4"
	if testing.Short() { // emulated hosts, and slow ones
		rounds = "rounds=1"
	}
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 1, Cmdline: rounds})
	var mirrored, entered, returned, other int
	root := m.booted.Load().state.Root
	see := func(c *probe.Context) {
		if c.CPL == 3 && c.Root&(guest.PageSize-1) != 0 {
			other++
		}
	}
	r := &probe.Kretprobe{
		Kprobe: probe.Kprobe{Symbol: "user_hot"},
		Entry: func(c *probe.Context) int {
			see(c)
			entered++
			v := m.vcpus[c.CPU]
			v.sregs.CR3 ^= flags
			v.kvm.SetSregsDirty()
			return 0
		},
		Return: func(c *probe.Context) { see(c); returned++ },
	}
	j := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "user_hot"}, Entry: func(c *probe.Context, _ probe.Args) { see(c); mirrored++ }}
	if err := m.Engine().Register(r, j); err != nil {
		t.Fatal(err)
	}
	results(t, m)
	i, _ := m.Engine().Info(&r.Kprobe)
	if s := i.Stats; entered == 0 || returned != entered || s.Handled != uint64(entered) || s.Returns != s.Handled || s.Abandoned != 0 || s.Missed != 0 || i.InUse != 0 {
		t.Errorf("%d calls, %d returns, %d in use: %+v", entered, returned, i.InUse, s)
	}
	if mirrored != entered || other != 0 {
		t.Errorf("%d of %d calls seen by the other probe, %d times by other page tables than %v", mirrored, entered, other, root)
	}
}
