package torture

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

// fill writes what the kernel and the tasks find.
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
	n, err := img.Lookup("tt_tasks")
	if err != nil {
		return err
	}
	return m.Target().WriteMemory(0, n.Addr, []byte{byte(p.Tasks), 0, 0, 0, 0, 0, 0, 0})
}

// Interrupts say how often a guest was interrupted.
type Interrupts struct{ Ticks, Signals uint64 }

// outcomes reads what the tasks of a guest that has ended did.
func (p *Program) outcomes(m *machine.Machine) (out []Outcome, n Interrupts, err error) {
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
