package device

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
)

// State is the state of the devices of a Platform, without the guest's memory
// and the contents of disks.
type State struct {
	Serial SerialState
	HVC    []byte        // unread input of the virtio console
	Timer  time.Duration // the ACPI timer's count
	Enable [2]byte       // ACPI's registers
	Sleep  uint16
	Reset  byte
	Index  byte // of the clock
	Bytes  [128]byte
	Virtio []VirtioState
}

// SerialState is that of the serial port.
type SerialState struct {
	IER, LCR, MCR, Scratch byte
	FIFO, Sent             bool
	Divisor                [2]byte
	Loopback, Input        []byte
}

// VirtioState is that of a virtio device.
type VirtioState struct {
	Kind                                              uint32
	Config                                            []byte // of the device: a disk's size, say
	Offered, Driver                                   uint64 // features
	Status, Pending, FeaturesSel, DriverSel, Selected uint32
	Queues                                            []QueueState
	Disk                                              DiskState // of a disk
}

// QueueState is that of a queue.
type QueueState struct {
	Ready               bool
	Size                uint16
	Desc, Avail, Used   guest.GPA
	NextAvail, NextUsed uint16
}

// DiskState tells whether the contents of a disk have changed.
type DiskState struct {
	Name     string        // how the guest calls it
	ReadOnly bool          `json:",omitempty"`
	Changed  time.Duration // since 1970, for a writable disk
}

// ErrOtherBoard: the state is one of other devices, or of disks whose contents have changed.
var ErrOtherBoard = errors.New("the snapshot is of a guest with other devices")

// Hold keeps the devices away from the guest's memory, after waiting for
// accesses in progress. No vCPU may touch the board until release is called.
func (p *Platform) Hold() (release func()) {
	for _, v := range p.virtio {
		v.work.Lock()
	}
	return func() {
		for _, v := range p.virtio {
			v.work.Unlock()
			v.wake()
		}
	}
}

// Save returns the state. Precondition: Hold. It fails if changes of a disk's
// contents could not be detected later.
func (p *Platform) Save() (*State, error) {
	s := &State{Serial: p.serial.save(), HVC: p.hvc.input.copy(), Timer: p.cfg.Now().Sub(p.power.start)}
	p.power.mu.Lock()
	s.Enable, s.Sleep, s.Reset = p.power.enable, p.power.control, p.power.rst
	p.power.mu.Unlock()
	p.clock.mu.Lock()
	s.Index, s.Bytes = p.clock.index, p.clock.ram
	p.clock.mu.Unlock()
	for _, v := range p.virtio {
		d, err := diskState(v.model)
		if err != nil {
			return nil, err
		}
		s.Virtio = append(s.Virtio, v.save(d))
	}
	return s, nil
}

// CheckFit reports why the board cannot have the state: an error that wraps ErrOtherBoard.
func (p *Platform) CheckFit(s *State) error {
	other := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrOtherBoard}, args...)...)
	}
	if len(s.Virtio) != len(p.virtio) {
		return other("it has %d disks, this one %d", max(0, len(s.Virtio)-boardVirtio), len(p.virtio)-boardVirtio)
	}
	for i, v := range p.virtio {
		w := &s.Virtio[i]
		is, err := diskState(v.model)
		switch {
		case err != nil:
			return err
		case w.Kind != v.model.kind() || len(w.Queues) != len(v.queues) || w.Offered != v.offeredFeatures() || !bytes.Equal(w.Config, v.model.config()):
			return other("its virtio device %d is another one, or a disk of another size", i)
		case slices.ContainsFunc(w.Queues, func(q QueueState) bool { return q.Ready && v.queueOf(&q).start() != nil }):
			return other("its virtio device %d has a queue that cannot be", i)
		case w.Disk != is:
			return other("the contents of %s have changed since: a writable disk is not in the snapshot; pass a copy that was made when the guest was saved, or use read-only disks", is.Name)
		}
	}
	return nil
}

// boardVirtio is how many virtio devices a board has without a disk.
const boardVirtio = 2

// Restore sets the devices to a saved state, including their interrupt lines. No
// vCPU may have accessed the devices before. It returns the errors of CheckFit.
func (p *Platform) Restore(s *State) error {
	if err := p.CheckFit(s); err != nil {
		return err
	}
	p.power.mu.Lock()
	p.power.start = p.cfg.Now().Add(-s.Timer)
	p.power.enable, p.power.control, p.power.rst = s.Enable, s.Sleep, s.Reset
	p.power.mu.Unlock()
	p.clock.mu.Lock()
	p.clock.index, p.clock.ram = s.Index%byte(len(p.clock.ram)), s.Bytes
	p.clock.mu.Unlock()
	p.serial.restore(&s.Serial)
	p.hvc.input.fill(s.HVC)
	for i, v := range p.virtio {
		if err := v.restore(&s.Virtio[i]); err != nil {
			return fmt.Errorf("%w: %w", ErrOtherBoard, err)
		}
		v.wake()
	}
	return nil
}

func (s *serial) save() SerialState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return SerialState{
		IER: s.ier, LCR: s.lcr, MCR: s.mcr, Scratch: s.scratch, FIFO: s.fifo, Sent: s.sent, Divisor: s.divisor,
		Loopback: bytes.Clone(s.loopback), Input: s.input.copy(),
	}
}

func (s *serial) restore(from *SerialState) {
	s.input.fill(from.Input)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ier, s.lcr, s.mcr, s.scratch, s.fifo, s.sent, s.divisor = from.IER&ierMask, from.LCR, from.MCR&mcrMask, from.Scratch, from.FIFO, from.Sent, from.Divisor
	s.loopback = append(s.loopback[:0], from.Loopback[:min(len(from.Loopback), loopRoom)]...)
	s.updateIRQ()
}

// copy returns the unread input, and fill restores it.
func (in *input) copy() []byte {
	in.mu.Lock()
	defer in.mu.Unlock()
	return bytes.Clone(in.bytes)
}

func (in *input) fill(b []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.bytes = append(in.bytes[:0], b[:min(len(b), inputRoom)]...)
}

func (v *virtio) save(d DiskState) VirtioState {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := VirtioState{
		Kind: v.model.kind(), Config: v.model.config(), Offered: v.offeredFeatures(), Driver: v.driver, Status: v.status, Pending: v.pending,
		FeaturesSel: v.featuresSel, DriverSel: v.driverSel, Selected: v.queueSel, Disk: d,
	}
	for i := range v.queues {
		q := &v.queues[i]
		s.Queues = append(s.Queues, QueueState{q.ready, q.size, q.desc, q.avail, q.used, q.nextAvail, q.nextUsed})
	}
	return s
}

func (v *virtio) restore(s *VirtioState) error {
	v.work.Lock()
	defer v.work.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.driver, v.status, v.pending = s.Driver&v.offeredFeatures(), s.Status&statusMask, s.Pending
	v.featuresSel, v.driverSel, v.queueSel = s.FeaturesSel, s.DriverSel, s.Selected
	for i, w := range s.Queues {
		q := &v.queues[i]
		*q = *v.queueOf(&w)
		if !w.Ready {
			continue
		}
		if err := q.start(); err != nil {
			return err
		}
		q.nextAvail, q.nextUsed = w.NextAvail, w.NextUsed
	}
	v.irq.drive(v.pending != 0)
	return nil
}

// queueOf returns a queue with that state, which has not started yet.
func (v *virtio) queueOf(s *QueueState) *queue {
	return &queue{ram: v.ram, size: s.Size, desc: s.Desc, avail: s.Avail, used: s.Used}
}

// diskState returns that of a model that is a disk.
func diskState(m model) (s DiskState, err error) {
	b, ok := m.(*blk)
	if !ok {
		return s, nil
	}
	s.Name, s.ReadOnly = b.name, b.readOnly
	if b.readOnly {
		return s, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(b.fd, &st); err != nil {
		return s, fmt.Errorf("%s: %w", b.name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return s, fmt.Errorf("%s: a block device does not tell when it was changed: give it read-only, or an image", b.name)
	}
	s.Changed = time.Duration(st.Mtim.Nano())
	return s, nil
}
