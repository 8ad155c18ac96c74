package device

import (
	"sync"
	"time"
)

// The ports of a PC's clock.
const (
	clockIndex = 0x70
	clockData  = 0x71
)

// Registers of an MC146818 (its data sheet, "address map"), and century, where the FADT says it is.
const (
	clockSeconds = 0x00
	clockMinutes = 0x02
	clockHours   = 0x04
	clockWeekday = 0x06
	clockDay     = 0x07
	clockMonth   = 0x08
	clockYear    = 0x09
	clockA       = 0x0a
	clockB       = 0x0b
	clockC       = 0x0c
	clockD       = 0x0d
	clockCentury = 0x32

	clockA32kHz = 0x26 // a divider that counts seconds, and no update in progress
	clockB24h   = 0x02 // hours from 0 to 23, all in BCD, no interrupts
	clockDValid = 0x80
)

// clock is an MC146818 that shows the host's time in UTC. Setting it has no
// effect. It has no alarm, and raises no interrupts; its other bytes are memory.
type clock struct {
	now func() time.Time

	mu    sync.Mutex
	index byte
	ram   [128]byte
}

func (c *clock) in(port uint16, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range data {
		switch port + uint16(i) {
		case clockIndex:
			data[i] = c.index
		case clockData:
			data[i] = c.read()
		}
	}
}

func (c *clock) out(port uint16, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, b := range data {
		switch port + uint16(i) {
		case clockIndex:
			c.index = b & 0x7f // bit 7 masks NMI
		case clockData:
			c.ram[c.index] = b
		}
	}
}

func (c *clock) read() byte {
	t := c.now().UTC()
	switch c.index {
	case clockSeconds:
		return bcd(t.Second())
	case clockMinutes:
		return bcd(t.Minute())
	case clockHours:
		return bcd(t.Hour())
	case clockWeekday:
		return bcd(int(t.Weekday()) + 1)
	case clockDay:
		return bcd(t.Day())
	case clockMonth:
		return bcd(int(t.Month()))
	case clockYear:
		return bcd(t.Year() % 100)
	case clockCentury:
		return bcd(t.Year() / 100)
	case clockA:
		return clockA32kHz
	case clockB:
		return clockB24h
	case clockC:
		return 0
	case clockD:
		return clockDValid
	}
	return c.ram[c.index]
}

// bcd returns a number below 100 as two decimal digits.
func bcd(n int) byte { return byte(n/10<<4 | n%10) }
