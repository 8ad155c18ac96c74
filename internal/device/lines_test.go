package device

import (
	"testing"

	"go.uber.org/goleak"

	_ "github.com/guestprobe/guestprobe/internal/fuzzing"
)

// No test leaves a goroutine of a device behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines are the inputs of an interrupt controller.
type lines struct {
	level [24]bool
	rises [24]int
}

func (l *lines) set(line uint32, high bool) {
	if high && !l.level[line] {
		l.rises[line]++
	}
	l.level[line] = high
}

// in8 and out8 are one access to a byte.
func in8(p *Platform, port uint16) byte {
	b := [1]byte{0x55}
	p.In(port, b[:])
	return b[0]
}

func out8(p *Platform, port uint16, b byte) { p.Out(port, []byte{b}) }
