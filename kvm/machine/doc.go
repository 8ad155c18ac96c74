// Package machine boots a guest under KVM, runs its vCPUs, and gives it a probe
// engine: with packages guest (images) and probe (probes, handlers) it is all that
// a program needs to probe a guest of its own.
//
//	img, err := guest.LoadFile("guest.elf")
//	m, err := machine.New(machine.Config{Image: img, VCPUs: 2})
//	defer m.Close(ctx)
//	err = m.Engine().Register(&probe.Kprobe{Symbol: "vfs_read", Pre: handler})
//	err = m.Resume()
//	state, err := m.Wait(ctx)
//
// New leaves the guest before its first instruction, with all vCPUs at rest; probes
// that are registered then see everything. Resume and Pause let the vCPUs run and bring
// them to rest, Reset boots the guest anew with its probes in place, and Close takes
// the probes off and frees everything. A guest that exits or crashes stays as it is, to
// be looked at, until one of the two.
//
// How traps reach the host differs between KVM hosts; New finds it out by running a
// small guest first (package kvm/host), and what this host cannot serve is refused when
// a probe is registered.
package machine
