package machine

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/device"
)

// board is the devices of one boot of a Linux guest.
type board struct {
	platform *device.Platform
	vm       atomic.Pointer[kvm.VM] // whose interrupt lines the devices drive; nil before it is made
	ended    atomic.Int32           // one of the values below
}

// How a guest ended itself.
const (
	endPowerOff = iota + 1
	endReset
)

// createDevices creates the devices of a guest that is about to boot, and writes
// the tables in which firmware describes them.
func (g *linuxGuest) createDevices(m *Machine) error {
	ram := new(guest.Memory)
	for i, r := range m.mem.ranges {
		if r.Kind != guest.RangeRAM {
			continue // the engine's memory, which the guest's devices must not write
		}
		if err := ram.Add(r.Base, m.mem.regions[i], r.Name); err != nil {
			return err
		}
	}
	b := &board{}
	p, err := device.New(device.Config{
		VCPUs: m.cfg.VCPUs,
		IRQ: func(line uint32, high bool) {
			if vm := b.vm.Load(); vm != nil {
				if err := vm.IRQLine(line, high); err != nil {
					m.log.Error("interrupt line failed", "line", line, "err", err)
				}
			}
		},
		Serial:   m.console.writeTTY,
		HVC:      m.console.writeSecondTTY,
		RAM:      ram,
		Disks:    g.cfg.Disks,
		PowerOff: func() { b.ended.Store(endPowerOff) },
		Reset:    func() { b.ended.Store(endReset) },
	})
	if err != nil {
		return err
	}
	b.platform = p
	g.board.Store(b)
	tables := p.Tables()
	at, err := m.mem.Slice(device.TablesAddr, len(tables))
	if err != nil {
		return err
	}
	copy(at, tables)
	return nil
}

// close implements payload.
func (g *linuxGuest) close() error {
	if b := g.board.Load(); b != nil {
		return b.platform.Close()
	}
	return nil
}

// input implements typist. The guest reads at its /dev/console, which is the
// last console on its command line (the kernel's
// admin-guide/serial-console.rst).
func (g *linuxGuest) input(ctx context.Context, m *Machine, b []byte) (int, error) {
	to := device.Serial
	params, _, _ := strings.Cut(m.cfg.Cmdline, " -- ")
	for _, w := range strings.Fields(params) {
		if name, ok := strings.CutPrefix(w, "console="); ok {
			to = device.Serial
			if strings.HasPrefix(name, "hvc") {
				to = device.HVC
			}
		}
	}
	n, err := g.board.Load().platform.Input(ctx, to, b)
	if errors.Is(err, device.ErrClosed) {
		err = ErrNotRunnable
	}
	return n, err
}

func (g *linuxGuest) handlePort(v *vcpu) bool {
	io, b := &v.exit.IO, g.board.Load()
	size := int(io.Size)
	for at := 0; at+size <= len(io.Data); at += size {
		if io.In {
			b.platform.In(io.Port, io.Data[at:at+size])
		} else {
			b.platform.Out(io.Port, io.Data[at:at+size])
		}
	}
	switch b.ended.Load() {
	case endPowerOff:
		v.endExited(0)
	case endReset:
		v.m.log.Info("the guest has asked for a reset", "vcpu", v.id)
		v.endExited(exitReset)
	}
	return true
}

// exitReset is the exit code of a guest that has asked for a reset.
const exitReset = 1

func (g *linuxGuest) handleMMIO(v *vcpu) bool {
	x, p := &v.exit.MMIO, g.board.Load().platform
	n := min(int(x.Len), len(x.Data))
	if x.Write {
		return p.Write(guest.GPA(x.GPA), x.Data[:n])
	}
	var b [8]byte
	if !p.Read(guest.GPA(x.GPA), b[:n]) {
		return false
	}
	v.kvm.SetMMIO(b)
	return true
}

// hasDeadlineTimer reports whether the local APICs have the TSC deadline timer.
func (m *Machine) hasDeadlineTimer() bool { return m.sys.Check(kvm.CapTSCDeadlineTimer) != 0 }

// readText reads the kernel's image as the guest knows it: without the engine's
// changes.
func (g *linuxGuest) readText(m *Machine, at guest.GVA, p []byte) error {
	if err := m.space(0).Read(at, p); err != nil {
		return err
	}
	if m.engine != nil {
		m.engine.Unpatch(at, p)
	}
	g.hideStubs(at, p)
	return nil
}

// hideStubs restores the guest's own bytes in the handlers that forward
// breakpoints. They are restored in p, which was read from the address at.
func (g *linuxGuest) hideStubs(at guest.GVA, p []byte) {
	for _, s := range g.stubs {
		for i, b := range s.bytes {
			if off := uint64(s.at) + uint64(i) - uint64(at); off < uint64(len(p)) {
				p[off] = b
			}
		}
	}
}
