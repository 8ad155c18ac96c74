package device

import (
	"sync"
	"testing"

	"go.uber.org/goleak"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// No test leaves a goroutine of a device behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines are the inputs of an interrupt controller.
type lines struct {
	mu      sync.Mutex
	level   [24]bool
	rises   [24]int
	changed chan struct{} // holds a token when something changed
}

func (l *lines) set(line uint32, high bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if high && !l.level[line] {
		l.rises[line]++
	}
	l.level[line] = high
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *lines) high(line uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.level[line]
}

// riseCount returns how often a line has gone up.
func (l *lines) riseCount(line uint32) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rises[line]
}

// wait waits until a line is high.
func (l *lines) wait(t *testing.T, line uint32) {
	t.Helper()
	for !l.high(line) {
		select {
		case <-l.changed:
		case <-patience.Context(t).Done():
			t.Fatalf("no interrupt on line %d", line)
		}
	}
}

// board returns a platform whose lines are recorded.
func board(t *testing.T, change func(*Config)) (*Platform, *lines) {
	t.Helper()
	l := &lines{changed: make(chan struct{}, 1)}
	c := Config{VCPUs: 1, IRQ: l.set}
	if change != nil {
		change(&c)
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, l
}

// readPort8 and out8 are one access to a byte.
func readPort8(p *Platform, port uint16) byte {
	b := [1]byte{0x55}
	p.In(port, b[:])
	return b[0]
}

func writePort8(p *Platform, port uint16, b byte) { p.Out(port, []byte{b}) }
