package device

import (
	"encoding/binary"
	"sync"
	"time"
)

// Ports of power management: a block of ACPI registers (ACPI 6.5, 4.8.3), the
// reset control register of Intel's chip sets, and the command port of the
// keyboard controller, which supports only the reset.
const (
	pmPort       = 0x600
	pmEnable     = 2 // PM1 enable, after PM1 status
	pmControl    = 4 // PM1 control
	pmTimer      = 8
	pmPorts      = 12
	resetPort    = 0xcf9
	keyboardPort = 0x64

	resetNow      = 1 << 2 // of the reset control register
	resetValue    = resetNow | 1<<1
	keyboardReset = 0xfe // pulse output line 0

	pmSCI       = 1 << 0 // ACPI owns the registers
	pmSleepAt   = 10     // SLP_TYP
	pmSleepMask = 7 << pmSleepAt
	pmSleepNow  = 1 << 13 // SLP_EN
	pmOff       = 5       // SLP_TYP of S5, as the DSDT says

	pmTimerHz = 3579545
)

// power turns the guest off, resets it, and is the ACPI timer. No event ever
// sets a status bit, so the system control interrupt stays low.
type power struct {
	now             func() time.Time
	start           time.Time
	powerOff, reset func()

	mu      sync.Mutex
	enable  [2]byte
	control uint16
	rst     byte
}

func (p *power) in(port uint16, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch port {
	case resetPort:
		data[0] = p.rst
		return
	case keyboardPort:
		data[0] = 0 // ready for the next command
		return
	}
	var b [pmPorts]byte
	copy(b[pmEnable:], p.enable[:])
	binary.LittleEndian.PutUint16(b[pmControl:], p.control|pmSCI)
	t := p.now().Sub(p.start)
	ticks := uint64(t/time.Second)*pmTimerHz + uint64(t%time.Second)*pmTimerHz/uint64(time.Second)
	binary.LittleEndian.PutUint32(b[pmTimer:], uint32(ticks))
	copy(data, b[port-pmPort:])
}

func (p *power) out(port uint16, data []byte) {
	// The functions are called without the lock: stopping the guest may take long.
	if f := p.write(port, data); f != nil {
		f()
	}
}

// write changes registers and returns the action that the guest asked for, or
// nil.
func (p *power) write(port uint16, data []byte) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch port {
	case resetPort:
		p.rst = data[0] &^ resetNow
		if data[0]&resetNow != 0 {
			return p.reset
		}
		return nil
	case keyboardPort:
		if data[0] == keyboardReset {
			return p.reset
		}
		return nil
	}
	off := false
	for i, b := range data {
		switch at := int(port) - pmPort + i; at {
		case pmEnable, pmEnable + 1:
			p.enable[at-pmEnable] = b
		case pmControl:
			p.control = p.control&0xff00 | uint16(b)
		case pmControl + 1:
			w := uint16(b) << 8
			p.control = p.control&0x00ff | w&^pmSleepNow
			off = w&pmSleepNow != 0 && w&pmSleepMask == pmOff<<pmSleepAt
		}
	}
	if off {
		return p.powerOff
	}
	return nil
}
