package device

import (
	"encoding/binary"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
)

// The addresses of virtio devices: each has a page of physical memory below the
// I/O APIC, and an interrupt line of its own, which no 8259 has.
const (
	virtioAddr  = 0xfeb00000
	virtioSpace = 0x1000
	virtioIRQ   = 16
	virtioMax   = 24 - virtioIRQ
)

// Registers of the memory mapped transport, version 2 (Virtio 1.2, 4.2.2).
const (
	regMagic         = 0x000
	regVersion       = 0x004
	regDevice        = 0x008
	regVendor        = 0x00c
	regFeatures      = 0x010
	regFeaturesSel   = 0x014
	regDriver        = 0x020
	regDriverSel     = 0x024
	regQueueSel      = 0x030
	regQueueMax      = 0x034
	regQueueNum      = 0x038
	regQueueReady    = 0x044
	regNotify        = 0x050
	regInterrupt     = 0x060
	regAck           = 0x064
	regStatus        = 0x070
	regDesc          = 0x080 // each of these three: the low half, followed by the high half
	regAvail         = 0x090
	regUsed          = 0x0a0
	regShmLen        = 0x0b0 // of shared memory, which is not supported: all ones
	regShmEnd        = 0x0c0
	regConfig        = 0x100
	virtioMagic      = 0x74726976
	virtioVersion    = 2
	virtioVendor     = 0x42525047
	featureVersion1  = 1 << 32
	interruptUsed    = 1 << 0
	interruptConfig  = 1 << 1
	statusFeaturesOK = 1 << 3
	statusDriverOK   = 1 << 2
	statusNeedsReset = 1 << 6
	statusMask       = 0xff
)

// model is the device that a transport serves. serve is called by one thread at
// a time.
type model interface {
	kind() uint32     // the device ID of the specification's chapter 5
	features() uint64 // in addition to featureVersion1
	queues() int
	config() []byte // never changes
	// serve handles a request of a queue and returns how many bytes of c.in it
	// wrote, from the first on. It returns false when the request has to wait; the
	// request comes again when the device is kicked.
	serve(queue int, c *chain, features uint64) (written uint32, done bool)
	close() error
}

// virtio is a device with the memory mapped transport. A thread of its own
// serves requests, so that they do not block a vCPU.
type virtio struct {
	model model
	ram   *guest.Memory
	kick  chan struct{} // holds one token: there may be something to do
	ended chan struct{} // closed when the thread has ended

	// work is held while a request is served, and during a reset of the device:
	// after a reset no request touches the guest's memory. It is taken before mu.
	work sync.Mutex

	mu                     sync.Mutex
	irq                    line
	status, pending        uint32
	featuresSel, driverSel uint32
	driver                 uint64 // features that the driver accepts
	queueSel               uint32
	queues                 []queue
}

func newVirtio(m model, ram *guest.Memory, irq line, closed <-chan struct{}) *virtio {
	v := &virtio{model: m, ram: ram, irq: irq, kick: make(chan struct{}, 1), ended: make(chan struct{})}
	v.queues = make([]queue, m.queues())
	v.reset()
	go v.run(closed)
	return v
}

// wake has the device's thread look at its queues.
func (v *virtio) wake() {
	select {
	case v.kick <- struct{}{}:
	default: // it is going to look
	}
}

// run is the device's thread.
func (v *virtio) run(closed <-chan struct{}) {
	defer close(v.ended)
	for {
		select {
		case <-v.kick:
		case <-closed:
			return
		}
		for i := range v.queues {
			for v.serve(i) {
				select {
				case <-closed:
					return
				default:
				}
			}
		}
	}
}

// serve serves the next request of a queue. It returns false if there is no
// request, or none that can be served now.
func (v *virtio) serve(i int) bool {
	v.work.Lock()
	defer v.work.Unlock()
	c, features := v.next(i)
	if c == nil {
		return false
	}
	n, done := v.model.serve(i, c, features)
	if !done {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.queues[i].push(c, n) {
		v.raiseInterrupt(interruptUsed)
	}
	return true
}

// next takes the next request. If there is no request, it asks the driver to
// notify, and looks once more for one that arrived before that.
func (v *virtio) next(i int) (*chain, uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	q := &v.queues[i]
	if v.status&(statusDriverOK|statusNeedsReset) != statusDriverOK || !q.ready {
		return nil, 0
	}
	q.setNoNotify(true)
	c, err := q.next()
	if c == nil && err == nil {
		q.setNoNotify(false)
		c, err = q.next()
	}
	if err != nil {
		v.setNeedsReset()
		return nil, 0
	}
	return c, v.driver
}

// setNeedsReset reports that the driver has broken the protocol, and serves
// nothing until it resets the device (Virtio 1.2, 2.1.2). Precondition: mu held.
func (v *virtio) setNeedsReset() {
	v.status |= statusNeedsReset
	v.raiseInterrupt(interruptConfig)
}

// raiseInterrupt adds causes. Precondition: mu held.
func (v *virtio) raiseInterrupt(cause uint32) {
	v.pending |= cause
	v.irq.drive(v.pending != 0)
}

// reset sets the power-on state. Precondition: work and mu held, or no other
// goroutine knows v.
func (v *virtio) reset() {
	v.status, v.pending, v.featuresSel, v.driverSel, v.driver, v.queueSel = 0, 0, 0, 0, 0, 0
	for i := range v.queues {
		v.queues[i] = queue{ram: v.ram}
	}
	v.irq.drive(false)
}

// queue returns the queue that the driver has selected, or nil.
func (v *virtio) queue() *queue {
	if int64(v.queueSel) < int64(len(v.queues)) {
		return &v.queues[v.queueSel]
	}
	return nil
}

// read reads registers by four bytes, and the device's configuration in any way.
func (v *virtio) read(at uint64, data []byte) {
	clear(data)
	if at >= regConfig {
		if c := v.model.config(); at-regConfig < uint64(len(c)) {
			copy(data, c[at-regConfig:])
		}
		return
	}
	if len(data) == 4 {
		v.mu.Lock()
		defer v.mu.Unlock()
		binary.LittleEndian.PutUint32(data, v.register(at))
	}
}

func (v *virtio) register(at uint64) uint32 {
	q := v.queue()
	switch at {
	case regMagic:
		return virtioMagic
	case regVersion:
		return virtioVersion
	case regDevice:
		return v.model.kind()
	case regVendor:
		return virtioVendor
	case regFeatures:
		if v.featuresSel > 1 {
			return 0
		}
		return uint32(v.offeredFeatures() >> (32 * v.featuresSel))
	case regQueueMax:
		if q != nil {
			return queueMax
		}
	case regQueueReady:
		if q != nil && q.ready {
			return 1
		}
	case regInterrupt:
		return v.pending
	case regStatus:
		return v.status
	}
	if at >= regShmLen && at < regShmEnd {
		return ^uint32(0)
	}
	return 0
}

func (v *virtio) offeredFeatures() uint64 { return v.model.features() | featureVersion1 }

// write writes a register.
func (v *virtio) write(at uint64, data []byte) {
	if len(data) != 4 || at >= regConfig {
		return
	}
	x := binary.LittleEndian.Uint32(data)
	if at == regNotify {
		v.wake()
		return
	}
	if at == regStatus && x&statusMask == 0 || at == regQueueReady {
		v.work.Lock()
		defer v.work.Unlock()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch at {
	case regFeaturesSel:
		v.featuresSel = x
	case regDriverSel:
		v.driverSel = x
	case regDriver:
		if v.status&statusFeaturesOK == 0 && v.driverSel <= 1 {
			shift := 32 * v.driverSel
			v.driver = v.driver&^(0xffffffff<<shift) | uint64(x)<<shift
		}
	case regQueueSel:
		v.queueSel = x
	case regAck:
		v.pending &^= x
		v.irq.drive(v.pending != 0)
	case regStatus:
		v.setStatus(x & statusMask)
	default:
		v.setQueue(at, x)
	}
}

// setStatus handles the driver's next step (Virtio 1.2, 3.1.1). If it has chosen
// features that it may not have, statusFeaturesOK stays clear, which tells the
// driver.
func (v *virtio) setStatus(x uint32) {
	if x == 0 {
		v.reset()
		return
	}
	if x&statusFeaturesOK != 0 && (v.driver&^v.offeredFeatures() != 0 || v.driver&featureVersion1 == 0) {
		x &^= statusFeaturesOK
	}
	if x&statusFeaturesOK == 0 {
		x &^= statusDriverOK
	}
	v.status = v.status&statusNeedsReset | x
	v.wake() // there may be requests already
}

// setQueue sets up the selected queue.
func (v *virtio) setQueue(at uint64, x uint32) {
	q := v.queue()
	if q == nil || q.ready && at != regQueueReady {
		return
	}
	switch at {
	case regQueueNum:
		q.size = uint16(min(x, queueMax+1))
	case regQueueReady:
		if x&1 == 0 {
			*q = queue{ram: v.ram}
		} else if !q.ready && q.start() != nil {
			v.setNeedsReset()
		}
	case regDesc, regDesc + 4:
		setHalf(&q.desc, at, x)
	case regAvail, regAvail + 4:
		setHalf(&q.avail, at, x)
	case regUsed, regUsed + 4:
		setHalf(&q.used, at, x)
	}
}

// setHalf sets the low or high half of an address.
func setHalf(a *guest.GPA, at uint64, x uint32) {
	shift := (at & 4) * 8
	*a = *a&^(0xffffffff<<shift) | guest.GPA(x)<<shift
}
