// Package machine boots a guest under KVM, runs its vCPUs, and gives it a probe
// engine. Together with the packages guest (images) and probe (probes,
// handlers), a program needs nothing else to probe its own guest.
//
//	img, err := guest.LoadFile("guest.elf")
//	m, err := machine.New(machine.Config{Image: img, VCPUs: 2})
//	defer m.Close(ctx)
//	err = m.Engine().Register(&probe.Kprobe{Symbol: "vfs_read", Pre: handler})
//	err = m.Resume()
//	state, err := m.Wait(ctx)
//
// New leaves the guest before its first instruction, with all vCPUs paused, so
// probes that are registered then see everything. Resume and Pause run and pause
// the vCPUs. Reset boots the guest again with its probes in place. Close removes
// the probes and frees everything. A guest that exits or crashes stays as it is
// and can be inspected until Reset or Close.
//
// Hosts' KVM differ in how traps reach the host. New finds that out by running a
// small guest first (package kvm/host). A probe that this host cannot serve is
// rejected when it is registered.
package machine
