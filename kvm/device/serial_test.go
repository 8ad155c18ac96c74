package device

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// uart is a serial port as a driver of the guest sees it.
type uart struct {
	*Platform
	*lines
	out *bytes.Buffer
}

func newUART(t *testing.T) uart {
	t.Helper()
	var out bytes.Buffer
	p, l := board(t, func(c *Config) { c.Serial = func(b []byte) { out.Write(b) } })
	return uart{p, l, &out}
}

func (u uart) get(reg uint16) byte    { return readPort8(u.Platform, 0x3f8+reg) }
func (u uart) put(reg uint16, b byte) { writePort8(u.Platform, 0x3f8+reg, b) }
func (u uart) irq() bool              { return u.high(4) }

// What Linux's driver asks a port to find out that it is a 16550A (autoconfig in
// drivers/tty/serial/8250/8250_port.c), with its register names.
func TestSerialProbe(t *testing.T) {
	u := newUART(t)
	const rx, ier, iir, fcr, lcr, mcr, msr, scr = 0, 1, 2, 2, 3, 4, 6, 7
	want := func(what string, got, want byte) {
		t.Helper()
		if got != want {
			t.Errorf("%s is %#x, want %#x", what, got, want)
		}
	}
	u.put(ier, 0)
	want("IER cleared", u.get(ier), 0)
	u.put(ier, 0xff)
	want("IER set", u.get(ier), 0x0f)
	u.put(ier, 0)
	u.put(mcr, 0x10|0x08|0x02)
	want("MSR in loopback", u.get(msr)&0xf0, 0x90)
	u.put(mcr, 0x08)
	want("IIR without FIFO", u.get(iir)>>6, 0)
	u.put(fcr, 1)
	want("IIR with FIFO", u.get(iir)>>6, 3)
	u.put(lcr, 0x80)
	u.put(rx, 0x0c)
	u.put(ier, 0x01)
	want("divisor, low", u.get(rx), 0x0c)
	want("divisor, high", u.get(ier), 0x01)
	if u.get(iir) == 0 {
		t.Error("there seems to be an extended features register")
	}
	u.put(lcr, 0x03)
	want("LCR", u.get(lcr), 0x03)
	want("IER behind the divisor", u.get(ier), 0)
	u.put(scr, 0x5a)
	want("scratch", u.get(scr), 0x5a)
	if u.out.Len() != 0 || u.riseCount(4) != 0 {
		t.Errorf("output %q, %d interrupts", u.out, u.riseCount(4))
	}
}

// The transmitter's interrupt: when it is enabled, and behind each byte, until it was read; on
// the line only while OUT2 connects it.
func TestSerialSend(t *testing.T) {
	u := newUART(t)
	u.put(4, 0x08)
	if u.put(0, 'a'); u.irq() || u.get(5) != 0x60 {
		t.Errorf("interrupt %v, LSR %#x; want none, and empty", u.irq(), u.get(5))
	}
	for i, c := range []byte("bc") {
		u.put(1, 0)
		if u.put(1, 2); !u.irq() {
			t.Fatal("no interrupt when it is enabled")
		}
		if got := u.get(2); got != 2 || u.irq() {
			t.Fatalf("IIR %#x, line %v; want 2, and low", got, u.irq())
		}
		if got := u.get(2); got != 1 {
			t.Errorf("IIR %#x the second time, want 1", got)
		}
		if u.put(0, c); !u.irq() || u.riseCount(4) != 2*(i+1) {
			t.Errorf("line %v, %d rises behind a byte", u.irq(), u.riseCount(4))
		}
	}
	if u.put(4, 0); u.irq() {
		t.Error("the line is high without OUT2")
	}
	if got := u.out.String(); got != "abc" {
		t.Errorf("the host got %q", got)
	}
	u.Out(0x3ff, []byte{1, 2, 3, 4}) // past the last register
	u.put(4, 0x10)
	if u.put(0, 'x'); u.get(5) != 0x61 || u.get(0) != 'x' || u.get(5) != 0x60 || u.out.Len() != 3 {
		t.Errorf("loopback: the host got %q", u.out)
	}
}

// Input waits until the guest listens, comes in order, and holds the line until all of it is read.
func TestSerialReceive(t *testing.T) {
	u := newUART(t)
	u.put(4, 0x08)
	u.put(2, 1)
	if n, err := u.Input(patience.Context(t), Serial, []byte("hi")); n != 2 || err != nil {
		t.Fatalf("%d bytes taken, error %v", n, err)
	}
	// What an open of the port throws away on real hardware.
	if u.put(2, 7); u.get(5) != 0x60 || u.get(0) != 0 || u.irq() {
		t.Error("input came before the guest listened")
	}
	u.put(1, 1)
	for _, c := range []byte("hi") {
		if !u.irq() || u.get(2) != 0xc4 || u.get(5) != 0x61 {
			t.Fatalf("line %v, IIR %#x, LSR %#x", u.irq(), u.get(2), u.get(5))
		}
		if got := u.get(0); got != c {
			t.Fatalf("got %q, want %q", got, c)
		}
	}
	if u.irq() || u.get(2) != 0xc1 || u.get(5) != 0x60 {
		t.Errorf("line %v, IIR %#x, LSR %#x when all is read", u.irq(), u.get(2), u.get(5))
	}
}

// Input waits for room and gives up when its caller or the board does.
func TestInput(t *testing.T) {
	u := newUART(t)
	u.put(1, 1)
	sent := bytes.Repeat([]byte("0123456789"), 1000)
	type end struct {
		n   int
		err error
	}
	ends := make(chan end, 1)
	input := func(ctx context.Context, b []byte) {
		n, err := u.Input(ctx, Serial, b)
		ends <- end{n, err}
	}
	go input(patience.Context(t), sent)
	var got []byte
	for len(got) < len(sent) && patience.Context(t).Err() == nil {
		if u.get(5)&1 != 0 {
			got = append(got, u.get(0))
		}
	}
	if e := <-ends; e.n != len(sent) || e.err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d of %d bytes, error %v; the guest got %d", e.n, len(sent), e.err, len(got))
	}
	ctx, cancel := context.WithCancel(patience.Context(t))
	go input(ctx, sent)
	for u.get(5)&1 == 0 {
	}
	cancel()
	if e := <-ends; e.n != inputRoom || !errors.Is(e.err, context.Canceled) {
		t.Errorf("canceled: %d taken, error %v", e.n, e.err)
	}
	go input(patience.Context(t), sent)
	u.Close()
	if e := <-ends; e.n != 0 || !errors.Is(e.err, ErrClosed) {
		t.Errorf("closed: %d taken, error %v", e.n, e.err)
	}
}
