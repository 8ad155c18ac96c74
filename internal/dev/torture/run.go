package torture

import (
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

// fill writes the data that the kernel and the tasks read.
func (p *Program) fill(m *machine.Machine) error {
	img := m.Image()
	for i := range p.Tasks {
		if err := m.Target().WriteMemory(0, guest.GVA(dataOf(i)), p.Data); err != nil {
			return err
		}
	}
	cfg, err := img.Lookup("tt_config")
	if err != nil {
		return err
	}
	for i := range p.Tasks {
		if err := m.Target().WriteMemory(0, cfg.Addr+guest.GVA(i*configSize), p.config(i)); err != nil {
			return err
		}
	}
	if err := p.fillAlias(m); err != nil {
		return err
	}
	n, err := img.Lookup("tt_tasks")
	if err != nil {
		return err
	}
	return m.Target().WriteMemory(0, n.Addr, []byte{byte(p.Tasks), 0, 0, 0, 0, 0, 0, 0})
}

// fillAlias fills in the kernel's struct alias.
func (p *Program) fillAlias(m *machine.Machine) error {
	if p.Alias == nil || p.Alias.Boot {
		return nil
	}
	flags := uint64(0)
	for bit, is := range map[uint64]bool{1: p.Alias.Late, 4: !p.Kernel, 0x80: p.Alias.Large} {
		if is {
			flags |= bit
		}
	}
	at, err := m.Image().Lookup("tt_alias")
	if err != nil {
		return err
	}
	var b []byte
	for _, v := range []uint64{p.Alias.va(), textPA, uint64(len(p.Text)+4095) / 4096, flags} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return m.Target().WriteMemory(0, at.Addr, b)
}

// The operations of the guest's own tracer, as in kernel.h.
const (
	tracerBack = 1 << iota
	tracerTells
	tracerYields
)

// tracer sets the operations of the guest's own tracer.
func (p *Program) tracer(m *machine.Machine, bits byte) error {
	at, err := m.Image().Lookup("tt_tracer")
	if err != nil {
		return err
	}
	return m.Target().WriteMemory(0, at.Addr, []byte{bits})
}

// Interrupts say how often a guest was interrupted.
type Interrupts struct{ Ticks, Signals uint64 }

// outcomes reads the tasks' outcomes from a guest that has ended.
func (p *Program) outcomes(m *machine.Machine) (out []outcome, n Interrupts, err error) {
	res, err := m.Image().Lookup("tt_result")
	if err != nil {
		return nil, n, err
	}
	for i := range p.Tasks {
		b := make([]byte, resultSize)
		if err := m.Target().ReadMemory(0, res.Addr+guest.GVA(i*resultSize), b); err != nil {
			return nil, n, err
		}
		o, ticks, signals := parseResult(b)
		n.Ticks += ticks
		n.Signals += signals
		if err := o.memory(i, func(a uint64, b []byte) error { return m.Target().ReadMemory(0, guest.GVA(a), b) }); err != nil {
			return nil, n, err
		}
		out = append(out, o)
	}
	return out, n, nil
}
