package device

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/guest"
)

// MaxVCPUs is how many processors the tables can describe: one entry with an 8-bit
// APIC ID each, of which 255 is the broadcast (ACPI 6.5, 5.2.12.2).
const MaxVCPUs = 254

// Config describes the board, and has the functions that its devices call. These
// are called from the thread that accessed a device or from the device's own
// thread, one call at a time for each device. They must not call the Platform.
// IRQ is required, the others may be nil.
type Config struct {
	VCPUs int // 1 to MaxVCPUs

	// IRQ sets the level of an interrupt line, 0 to 23 as the I/O APIC counts them.
	IRQ func(line uint32, high bool)
	// Serial gets the guest's output to the serial port, and HVC its output to the
	// virtio console. They do not keep p.
	Serial, HVC func(p []byte)
	// PowerOff and Reset report that the guest asked for it. The guest runs on
	// until the vCPUs are stopped.
	PowerOff, Reset func()
	// RAM is the memory that virtio devices read and write on the guest's behalf.
	// It must be the guest's own memory only, because the devices can write where
	// the guest cannot. nil is a board without virtio.
	RAM *guest.Memory
	// Disks are the guest's vda, vdb and so on, at most MaxDisks.
	Disks []Disk
	// Now is the time that the clock shows; nil is the host's.
	Now func() time.Time
}

// MaxDisks is how many disks there is room for in addition to the entropy device
// and the console.
const MaxDisks = virtioMax - 2

// A Port is where a guest reads console input.
type Port uint8

// The ports.
const (
	Serial Port = iota
	HVC         // the virtio console
)

// Platform is a board. Its methods may be called from any thread, at the same time.
// A guest that starts again gets a new one.
type Platform struct {
	cfg    Config
	serial *serial
	power  power
	clock  clock
	hvc    *hvc
	virtio []*virtio

	closing sync.Once
	closed  chan struct{}
}

// ErrClosed is the answer of a Platform after Close.
var ErrClosed = errors.New("the guest's devices are closed")

// New creates a board with its devices in their state after power-on. Close it
// when no vCPU runs any more.
func New(c Config) (_ *Platform, err error) {
	switch {
	case c.VCPUs < 1 || c.VCPUs > MaxVCPUs:
		return nil, fmt.Errorf("devices for %d vCPUs: the ACPI tables describe 1 to %d", c.VCPUs, MaxVCPUs)
	case len(c.Disks) > MaxDisks:
		return nil, fmt.Errorf("%d disks: there are interrupt lines for %d", len(c.Disks), MaxDisks)
	case len(c.Disks) > 0 && c.RAM == nil:
		panic("BUG: disks without memory to read into")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	p := &Platform{cfg: c, closed: make(chan struct{})}
	p.serial = newSerial(newLine(c.IRQ, serialIRQ), c.Serial, p.closed)
	p.power = power{start: c.Now(), now: c.Now, powerOff: c.PowerOff, reset: c.Reset}
	p.clock = clock{now: c.Now}
	p.hvc = &hvc{output: c.HVC}
	p.hvc.input = input{closed: p.closed, came: func() {}}
	if c.RAM == nil {
		return p, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	for i, d := range c.Disks {
		b, err := openDisk(d, i)
		if err != nil {
			return nil, err
		}
		p.add(b)
	}
	p.hvc.input.came = func() { p.virtio[len(c.Disks)].wake() }
	p.add(p.hvc)
	p.add(rng{})
	return p, nil
}

// add puts a virtio device on the next place.
func (p *Platform) add(m model) {
	p.virtio = append(p.virtio, newVirtio(m, p.cfg.RAM, newLine(p.cfg.IRQ, virtioIRQ+uint32(len(p.virtio))), p.closed))
}

// Close ends the devices and all callers that wait in Input. When it returns, no
// device touches guest memory or a disk any more. Calls after the first do
// nothing.
func (p *Platform) Close() (err error) {
	p.closing.Do(func() {
		close(p.closed)
		for _, v := range p.virtio {
			<-v.ended
			err = errors.Join(err, v.model.close())
		}
	})
	return err
}

// Input passes b to the guest as console input at a port, and waits until there
// is room for all of it. It returns how much was accepted, and an error if that
// is not everything: ctx's error, or ErrClosed.
func (p *Platform) Input(ctx context.Context, to Port, b []byte) (int, error) {
	if to == HVC {
		return p.hvc.input.put(ctx, b)
	}
	return p.serial.input.put(ctx, b)
}

// In reads a port: data, of 1, 2 or 4 bytes, is the result of one access of the
// guest. Without a device it is all ones, as on a real bus, and In returns
// false.
func (p *Platform) In(port uint16, data []byte) bool {
	for i := range data {
		data[i] = 0xff
	}
	d := p.deviceAt(port)
	if d == nil {
		return false
	}
	d.in(port, data)
	return true
}

// Out writes a port: data, of 1, 2 or 4 bytes, comes from one access of the
// guest. It returns false if there is no device.
func (p *Platform) Out(port uint16, data []byte) bool {
	d := p.deviceAt(port)
	if d == nil {
		return false
	}
	d.out(port, data)
	return true
}

// ported is a device that is reached by ports. An access may be wider than its
// register, and reach past the last one.
type ported interface {
	in(port uint16, data []byte) // data is all ones
	out(port uint16, data []byte)
}

// deviceAt returns the device at a port, or nil.
func (p *Platform) deviceAt(port uint16) ported {
	switch {
	case port >= serialPort && port < serialPort+serialPorts:
		return p.serial
	case port == clockIndex || port == clockData:
		return &p.clock
	case port >= pmPort && port < pmPort+pmPorts || port == resetPort || port == keyboardPort:
		return &p.power
	}
	return nil
}

// Read reads len(data) bytes, at most 8, at pa, where the guest has no memory. It is false
// where no device is, and data then all ones.
func (p *Platform) Read(pa guest.GPA, data []byte) bool {
	v, at := p.window(pa)
	if v == nil {
		for i := range data {
			data[i] = 0xff
		}
		return false
	}
	v.read(at, data)
	return true
}

// Write writes data, at most 8 bytes, at pa, where the guest has no memory. It is false where no device is.
func (p *Platform) Write(pa guest.GPA, data []byte) bool {
	v, at := p.window(pa)
	if v == nil {
		return false
	}
	v.write(at, data)
	return true
}

// window returns the virtio device whose registers are at pa, and which register it is.
func (p *Platform) window(pa guest.GPA) (*virtio, uint64) {
	n := (uint64(pa) - virtioAddr) / virtioSpace
	if uint64(pa) < virtioAddr || n >= uint64(len(p.virtio)) {
		return nil, 0
	}
	return p.virtio[n], uint64(pa) % virtioSpace
}

// line is an interrupt line that one device drives.
type line struct {
	set  func(line uint32, high bool)
	n    uint32
	high bool
}

func newLine(set func(uint32, bool), n uint32) line { return line{set: set, n: n} }

// drive sets the level, and tells only of a change. The caller holds the device's lock.
func (l *line) drive(high bool) {
	if high != l.high {
		l.high = high
		l.set(l.n, high)
	}
}
