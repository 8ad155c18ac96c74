package device

import (
	"encoding/binary"
	"testing"
	"time"
)

// Each way off, and what is none.
func TestPower(t *testing.T) {
	word := func(w uint16) []byte { return binary.LittleEndian.AppendUint16(nil, w) }
	for _, tt := range []struct {
		name       string
		port       uint16
		data       []byte
		off, reset int
	}{
		{"S5", 0x604, word(5<<10 | 1<<13), 1, 0},
		{"S5, without enable", 0x604, word(5 << 10), 0, 0},
		{"S3", 0x604, word(3<<10 | 1<<13), 0, 0},
		{"S5, high byte", 0x605, []byte{5<<2 | 1<<5}, 1, 0},
		{"reset register", 0xcf9, []byte{6}, 0, 1},
		{"reset register, prepared", 0xcf9, []byte{2}, 0, 0},
		{"keyboard", 0x64, []byte{0xfe}, 0, 1},
		{"keyboard, another command", 0x64, []byte{0xd1}, 0, 0},
		{"enable", 0x602, word(0xffff), 0, 0},
		{"PCI configuration address", 0xcf8, []byte{0, 6, 0, 0x80}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var off, reset int
			p, l := board(t, func(c *Config) {
				c.PowerOff, c.Reset = func() { off++ }, func() { reset++ }
			})
			p.Out(tt.port, tt.data)
			if off != tt.off || reset != tt.reset {
				t.Errorf("%d times off, %d resets; want %d, %d", off, reset, tt.off, tt.reset)
			}
			for i := range l.level {
				if l.riseCount(uint32(i)) != 0 {
					t.Errorf("interrupt line %d moved", i)
				}
			}
		})
	}
}

// What the guest writes it reads, without what only acts; ACPI is on, and no event ever is.
func TestPowerRegisters(t *testing.T) {
	p, _ := board(t, nil)
	in16 := func(port uint16) uint16 {
		var b [2]byte
		p.In(port, b[:])
		return binary.LittleEndian.Uint16(b[:])
	}
	p.Out(0x600, []byte{0xff, 0xff, 0x20, 0x01}) // status and enable
	p.Out(0x604, []byte{0x00, 0x24})             // SLP_TYP 1, SLP_EN
	for port, want := range map[uint16]uint16{0x600: 0, 0x602: 0x0120, 0x604: 0x0401} {
		if got := in16(port); got != want {
			t.Errorf("port %#x is %#x, want %#x", port, got, want)
		}
	}
	writePort8(p, 0xcf9, 0x0a)
	if readPort8(p, 0xcf9) != 0x0a || readPort8(p, 0x64) != 0 {
		t.Errorf("reset register %#x, keyboard %#x", readPort8(p, 0xcf9), readPort8(p, 0x64))
	}
	var b [4]byte
	if p.In(0x300, b[:]) || b != [4]byte{0xff, 0xff, 0xff, 0xff} || p.Out(0x300, b[:]) {
		t.Errorf("a port of nobody reads as % x", b)
	}
}

func TestPMTimer(t *testing.T) {
	now := time.Unix(1e9, 0)
	p, _ := board(t, func(c *Config) { c.Now = func() time.Time { return now } })
	for _, tt := range []struct {
		after time.Duration
		want  uint32
	}{{0, 0}, {time.Second, 3579545}, {1500 * time.Millisecond, 5369317}, {1200 * time.Second, 4295454000 % (1 << 32)}, {200 * 24 * time.Hour, 17280000 * 3579545 % (1 << 32)}} {
		now = time.Unix(1e9, 0).Add(tt.after)
		var b [4]byte
		p.In(0x608, b[:])
		if got := binary.LittleEndian.Uint32(b[:]); got != tt.want {
			t.Errorf("after %v the timer is %d, want %d", tt.after, got, tt.want)
		}
	}
}

func TestClock(t *testing.T) {
	at := time.Date(2031, 12, 7, 23, 59, 8, 0, time.FixedZone("", -3600)) // the 8th, a Monday, in UTC
	p, _ := board(t, func(c *Config) { c.Now = func() time.Time { return at } })
	for reg, want := range map[byte]byte{0: 0x08, 2: 0x59, 4: 0x00, 6: 0x02, 7: 0x08, 8: 0x12, 9: 0x31, 0x32: 0x20, 0x0a: 0x26, 0x0b: 2, 0x0c: 0, 0x0d: 0x80, 0x40: 0} {
		writePort8(p, 0x70, reg|0x80)
		if got := readPort8(p, 0x71); got != want {
			t.Errorf("register %#x is %#x, want %#x", reg, got, want)
		}
	}
	writePort8(p, 0x70, 0x0f) // shutdown status
	writePort8(p, 0x71, 0x0a)
	if readPort8(p, 0x70) != 0x0f || readPort8(p, 0x71) != 0x0a {
		t.Error("the clock's memory does not hold what was written")
	}
}
