package device

import "sync"

// The first serial port of a PC.
const (
	serialPort  = 0x3f8
	serialPorts = 8
	serialIRQ   = 4
)

// Registers of a 16550 (PC16550D data sheet, 8.0), by their offset from the
// first port, and their bits.
const (
	uartData    = 0 // receive and transmit; divisor, low
	uartIER     = 1 // interrupt enable; divisor, high
	uartIIR     = 2 // interrupt identification; FIFO control, written
	uartLCR     = 3 // line control
	uartMCR     = 4 // modem control
	uartLSR     = 5 // line status
	uartMSR     = 6 // modem status
	uartScratch = 7

	ierReceived = 1 << 0
	ierSent     = 1 << 1
	ierMask     = 0x0f

	iirNone     = 0x01
	iirSent     = 0x02
	iirReceived = 0x04
	iirFIFO     = 0xc0
	fcrEnable   = 1 << 0

	lcrDivisor = 1 << 7

	mcrDTR  = 1 << 0
	mcrRTS  = 1 << 1
	mcrOut1 = 1 << 2
	mcrOut2 = 1 << 3 // connects the interrupt, on a PC
	mcrLoop = 1 << 4
	mcrMask = 0x1f

	lsrReady = 1 << 0
	lsrEmpty = 1<<5 | 1<<6 // holding register, and all

	msrCTS = 1 << 4
	msrDSR = 1 << 5
	msrRI  = 1 << 6
	msrDCD = 1 << 7
)

// serial is a 16550A whose output is read by the host at any speed, so sent
// bytes are gone at once. Input comes at the guest's speed: the host waits, as a
// terminal does under flow control. So nothing is lost while the guest does not
// read: Linux drops the contents of the FIFO when it opens a port.
type serial struct {
	output func([]byte)
	input  input

	mu       sync.Mutex
	irq      line
	ier      byte
	lcr      byte
	mcr      byte
	scratch  byte
	fifo     bool
	divisor  [2]byte
	sent     bool   // the transmitter became empty, and no read of IIR has said so
	loopback []byte // bytes sent with mcrLoop
	one      [1]byte
}

// loopRoom is the size of a 16550's FIFO, in bytes.
const loopRoom = 16

func newSerial(irq line, output func([]byte), closed <-chan struct{}) *serial {
	s := &serial{output: output, irq: irq}
	s.input = input{closed: closed, came: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.updateIRQ()
	}}
	return s
}

func (s *serial) in(port uint16, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range data {
		if reg := int(port) - serialPort + i; reg < serialPorts {
			data[i] = s.read(reg)
		}
	}
	s.updateIRQ()
}

func (s *serial) out(port uint16, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, b := range data {
		if reg := int(port) - serialPort + i; reg < serialPorts {
			s.write(reg, b)
		}
	}
	s.updateIRQ()
}

// ready reports whether there is a received byte.
func (s *serial) ready() bool {
	if s.mcr&mcrLoop != 0 {
		return len(s.loopback) > 0
	}
	return s.ier&ierReceived != 0 && s.input.waiting()
}

// updateIRQ drives the line.
func (s *serial) updateIRQ() {
	s.irq.drive(s.mcr&(mcrOut2|mcrLoop) == mcrOut2 && s.cause() != iirNone)
}

// cause returns the most urgent pending interrupt, as IIR tells it.
func (s *serial) cause() byte {
	switch {
	case s.ier&ierReceived != 0 && s.ready():
		return iirReceived
	case s.ier&ierSent != 0 && s.sent:
		return iirSent
	}
	return iirNone
}

func (s *serial) read(reg int) byte {
	switch reg {
	case uartData:
		if s.lcr&lcrDivisor != 0 {
			return s.divisor[0]
		}
		return s.receive()
	case uartIER:
		if s.lcr&lcrDivisor != 0 {
			return s.divisor[1]
		}
		return s.ier
	case uartIIR:
		c := s.cause()
		if c == iirSent {
			s.sent = false
		}
		if s.fifo {
			c |= iirFIFO
		}
		return c
	case uartLCR:
		return s.lcr
	case uartMCR:
		return s.mcr
	case uartLSR:
		if s.ready() {
			return lsrEmpty | lsrReady
		}
		return lsrEmpty
	case uartMSR:
		return s.modemStatus()
	default:
		return s.scratch
	}
}

func (s *serial) receive() byte {
	s.one[0] = 0
	switch {
	case !s.ready():
	case s.mcr&mcrLoop != 0:
		s.one[0] = s.loopback[0]
		s.loopback = s.loopback[:copy(s.loopback, s.loopback[1:])]
	default:
		s.input.take(s.one[:])
	}
	return s.one[0]
}

// modemStatus returns the modem's state: it is there and ready, or in loopback
// the state of the outputs.
func (s *serial) modemStatus() byte {
	if s.mcr&mcrLoop == 0 {
		return msrCTS | msrDSR | msrDCD
	}
	var m byte
	for _, w := range [...]struct{ out, in byte }{{mcrRTS, msrCTS}, {mcrDTR, msrDSR}, {mcrOut1, msrRI}, {mcrOut2, msrDCD}} {
		if s.mcr&w.out != 0 {
			m |= w.in
		}
	}
	return m
}

func (s *serial) write(reg int, b byte) {
	switch reg {
	case uartData:
		if s.lcr&lcrDivisor != 0 {
			s.divisor[0] = b
			return
		}
		s.send(b)
	case uartIER:
		if s.lcr&lcrDivisor != 0 {
			s.divisor[1] = b
			return
		}
		// A driver that enables the interrupt of an empty transmitter gets it at once
		// (PC16550D, 8.6).
		if b&ierSent != 0 && s.ier&ierSent == 0 {
			s.sent = true
		}
		s.ier = b & ierMask
	case uartIIR: // FIFO control
		s.fifo = b&fcrEnable != 0
	case uartLCR:
		s.lcr = b
	case uartMCR:
		if s.mcr = b & mcrMask; s.mcr&mcrLoop == 0 {
			s.loopback = s.loopback[:0]
		}
	case uartScratch:
		s.scratch = b
	}
}

func (s *serial) send(b byte) {
	s.sent = true
	if s.mcr&mcrLoop != 0 {
		if len(s.loopback) < loopRoom {
			s.loopback = append(s.loopback, b)
		}
		return
	}
	if s.output != nil {
		s.one[0] = b
		s.output(s.one[:])
	}
}
