package probetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/code"
)

// FakeOptions describes the guest that a Fake is.
type FakeOptions struct {
	CPUs  int          // number of vCPUs; 0 = 1
	Image *guest.Image // nil: the suite's (Image)

	// Symbols returns the symbols that the engine sees of an image; nil: the image
	// itself.
	Symbols func(*guest.Image) probe.Symbols

	// GS makes the guest one whose kernel has memory for each vCPU at its GS base:
	// see Run. No exception of CPL0 then reaches the engine before the guest's
	// handlers.
	GS bool

	// TickEvery delivers the timer interrupt each time a vCPU has executed that
	// many instructions with IF set; 0 = never.
	TickEvery int

	// Profile: the stacks of tasks, as in the image's profile, identify the vCPU;
	// the stacks of the vCPUs themselves do not.
	Profile bool

	// Can returns its capabilities, in kernel and in user code; nil: everything
	// except DetourPort.
	Can func(user bool) probe.Capabilities

	// Foreign makes it the guest of another hypervisor: it can be stopped, and its
	// memory accessed, but none of its exits are seen.
	Foreign bool

	// Still leaves the vCPUs without threads: nothing is interpreted, and a test
	// makes the hits itself (Fake.Hit, Fake.Deliver).
	Still bool

	// Faults, with GS, has the kernel resume the faults of stages: here the fake does it.
	Faults *guest.FaultProfile

	// Bare shows the engine only the methods of probe.Target and probe.World: no
	// PageTables, Runner, Detours or Memory, and no answer from World.Words. Can
	// then defaults to no capability. It is the minimal backend.
	Bare bool

	// View, if not nil, has the image's names, instead of Symbols. It is called each time.
	View func() guest.View

	// Probe is handed to probe.New.
	Probe probe.Options
}

// Fake is a guest in plain Go: virtual memory, vCPUs that interpret the
// instructions which the suite's image is made of, traps, exceptions and
// interrupts through the image's vectors. It implements probe.Target with all
// its extras, and Harness.
//
// Each vCPU is a goroutine on a thread of its own, which runs one Call at a time.
type Fake struct {
	img    *guest.Image
	mem    *memory
	cpus   []*vcpu
	engine *probe.Engine
	target probe.Target // the fake as the engine sees it
	tick   int
	prof   bool // FakeOptions.Profile
	still  bool // FakeOptions.Still
	show   func(*guest.Image) probe.Symbols
	syms   probe.Symbols // of img, as shown
	view   func() guest.View
	can    func(user bool) probe.Capabilities
	blind  bool         // FakeOptions.Foreign
	exec   [2]guest.GVA // where the engine's memory for code begins, by guest.Level

	// A vCPU that executes holds gate for reading and releases it between two
	// instructions when stopping is not 0.
	gate     sync.RWMutex
	stopping atomic.Int32
	stops    sync.Mutex // one stopper at a time

	bus sync.Mutex // locked instructions

	allocMu sync.Mutex // guards the rest
	shared  guest.FreeSpace
}

// Layout of the memory that the image leaves free. Between any two regions is a
// hole.
const (
	stackBase   = guest.GVA(0x7000_0000)
	stackStride = 0x10_0000
	stackSize   = 64 << 10

	kernelExec = guest.GVA(0xffff_ffff_8200_0000)
	userExec   = guest.GVA(0x0200_0000)
	execSize   = 8 << 20

	sharedBase = guest.GVA(0x5000_0000)
	sharedSize = 64 << 20

	gsBase = guest.GVA(0x6000_0000) // of vCPU 0; tasks are at taskBase
	gsEnd  = guest.GVA(0x6200_0000)

	// stopAddr is the return address of called functions. Nothing is mapped there.
	stopAddr = 0x7fff_0000
)

// NewFake boots a fake guest and puts an engine on it.
func NewFake(o FakeOptions) (*Fake, error) {
	if o.CPUs == 0 {
		o.CPUs = 1
	}
	if o.Image == nil {
		o.Image = Image()
	}
	if o.Can == nil {
		o.Can = func(user bool) probe.Capabilities {
			if o.Bare {
				return probe.Capabilities{}
			}
			can := probe.Capabilities{InPlace: true}
			if o.GS && o.Faults == nil {
				can.NoFault = "the guest's handlers have them first"
			}
			return can
		}
	}
	if o.Foreign {
		o.Can = func(bool) probe.Capabilities { return probe.Capabilities{NoBreakpoint: "no exit is seen"} }
	}
	if o.Symbols == nil && o.GS {
		o.Symbols = func(img *guest.Image) probe.Symbols { return &Kernel{Image: img, GS: true, Faults: o.Faults} }
	}
	if o.Symbols == nil {
		o.Symbols = func(img *guest.Image) probe.Symbols { return img }
	}
	f := &Fake{mem: newMemory(), tick: o.TickEvery, prof: o.Profile, still: o.Still, show: o.Symbols, view: o.View, can: o.Can, blind: o.Foreign}
	f.shared.Add(uint64(sharedBase), sharedSize)
	for i := range o.CPUs {
		// Stacks are user memory, so that CPL3 code can use them, too.
		f.mem.add(&region{base: stackBase + guest.GVA(i*stackStride), data: newStack(i), write: true, user: true})
		f.cpus = append(f.cpus, newVCPU(f, i))
	}
	if o.GS {
		f.addTasks()
	}
	f.load(o.Image)
	switch f.target = f; {
	case o.Foreign:
		f.target = foreign{f, f, f}
	case o.Bare:
		f.target = bare{f}
	}
	e, err := probe.New(f.target, o.Probe)
	if err != nil {
		return nil, err
	}
	f.engine = e
	if f.still {
		return f, nil
	}
	for _, v := range f.cpus {
		go v.serve()
		<-v.up // otherwise the caller's thread may become this one's while OnVCPU compares
	}
	return f, nil
}

// foreign is a Fake whose vCPUs another hypervisor runs: without probe.Runner,
// and without exits.
type foreign struct {
	probe.Target
	probe.PageTables
	probe.Detours
}

// bare is a Fake that has only the methods that each Target has.
type bare struct{ probe.Target }

// Stop implements probe.Target.
func (b bare) Stop(do func(probe.World) error) error {
	return b.Target.Stop(func(w probe.World) error { return do(bareWorld{w}) })
}

// bareWorld is the World of a bare Fake: it cannot tell which words the guest has.
type bareWorld struct{ probe.World }

// Words implements probe.World.
func (bareWorld) Words([]code.Range, func(guest.GVA)) bool { return false }

// newStack returns the memory of a vCPU's stack.
func newStack(cpu int) []byte {
	b := make([]byte, stackSize)
	binary.LittleEndian.PutUint64(b, stackMagic)
	binary.LittleEndian.PutUint32(b[8:], uint32(cpu))
	return b
}

// load replaces the guest's memory by img, and forgets the engine's.
func (f *Fake) load(img *guest.Image) {
	m := newMemory()
	for _, r := range *f.mem.regions.Load() {
		switch {
		case r.base >= stackBase && r.base < stopAddr:
			clear(r.data[16:])
			m.add(r)
		case r.base >= gsBase && r.base < gsEnd:
			m.add(r)
		case r.words != nil:
			clear(r.data)
			m.add(r)
		}
	}
	for _, s := range img.Segments {
		data := make([]byte, s.MemSize)
		copy(data, s.Data)
		m.add(&region{base: s.VAddr, data: data, write: s.W, exec: s.X, user: s.User})
	}
	for _, user := range []bool{false, true} {
		base := execBase(img, user)
		f.exec[guest.Level(user)] = base
		m.add(&region{base: base, data: make([]byte, 1, execSize), exec: true, user: user, slots: true})
	}
	f.mem, f.img, f.syms = m, img, f.show(img)
}

// Reset boots the guest from another image, or from the same again, and notifies
// the engine. No Call may be in progress.
func (f *Fake) Reset(img *guest.Image) error {
	return f.engine.Reload(func(save func()) (bool, error) { return true, f.Reboot(save, img) })
}

// Reboot is the reset of a guest whose engine is the caller's own.
func (f *Fake) Reboot(save func(), img *guest.Image) error {
	return f.Stop(func(probe.World) error {
		save()
		f.load(img)
		return nil
	})
}

// Close removes all probes and ends the vCPUs.
func (f *Fake) Close() error {
	err := f.engine.Close()
	if f.still {
		return err
	}
	for _, v := range f.cpus {
		close(v.calls)
		<-v.done
	}
	return err
}

// Engine returns the engine on the guest.
func (f *Fake) Engine() *probe.Engine { return f.engine }

// Target returns the guest as the engine sees it.
func (f *Fake) Target() probe.Target { return f.target }

// NumCPU implements probe.Target.
func (f *Fake) NumCPU() int { return len(f.cpus) }

// Symbols implements probe.Target.
func (f *Fake) Symbols() probe.Symbols {
	if f.view != nil {
		return f.view()
	}
	return f.syms
}

// Image returns the image as its names are now.
func (f *Fake) Image() guest.View {
	if f.view != nil {
		return f.view()
	}
	return f.img
}

// Capabilities implements probe.Target.
func (f *Fake) Capabilities(user bool) probe.Capabilities { return f.can(user) }

// ReadMemory implements probe.Target.
func (f *Fake) ReadMemory(_ guest.GPA, addr guest.GVA, p []byte) error {
	return f.mem.read(addr, p, mode{})
}

// WriteMemory implements probe.Target.
func (f *Fake) WriteMemory(_ guest.GPA, addr guest.GVA, p []byte) error {
	return f.mem.write(addr, p, mode{})
}

// ReadUser implements probe.PageTables.
func (f *Fake) ReadUser(_ guest.GPA, addr guest.GVA, p []byte) error {
	return f.mem.read(addr, p, mode{user: true})
}

// WriteUser implements probe.PageTables.
func (f *Fake) WriteUser(_ guest.GPA, addr guest.GVA, p []byte) error {
	return f.mem.write(addr, p, mode{user: true})
}

// Translate implements probe.PageTables: there is one address space, and physical
// addresses are the virtual ones.
func (f *Fake) Translate(_ guest.GPA, addr guest.GVA) (guest.GPA, bool) {
	return guest.GPA(addr), f.mem.find(addr) != nil
}

// AllocExec implements probe.Target.
func (f *Fake) AllocExec(near guest.GVA, size int) (guest.GVA, error) {
	f.allocMu.Lock()
	defer f.allocMu.Unlock()
	s, _ := f.img.Find(near)
	area := f.mem.find(f.exec[guest.Level(s.User)])
	base := area.base + guest.GVA(len(area.data)+63)&^63
	if base+guest.GVA(size) > area.base+execSize {
		return 0, errors.New("exec area is full")
	}
	for _, far := range []guest.GVA{base, base + guest.GVA(size)} {
		if d := int64(far - near); d > 1<<31-4096 || d < -1<<31+4096 {
			return 0, fmt.Errorf("exec area is out of reach of %v", near)
		}
	}
	f.mem.grow(area, int(base-area.base)+size-len(area.data))
	return base, nil
}

// execBase returns where the engine's memory for code of a privilege level
// begins: within reach of the image's code, in memory that the image does not
// use.
func execBase(img *guest.Image, user bool) guest.GVA {
	base := kernelExec
	if user {
		base = userExec
	}
	for _, r := range img.Text(user) {
		if d := int64(r.Start - base); d > 1<<30 || d < -1<<30 {
			base = r.End&^(1<<20-1) + 64<<20
		}
	}
	for _, s := range img.Segments { // in ascending order, or one after the other has been passed
		if end := s.VAddr + guest.GVA(s.MemSize); s.VAddr < base+execSize && base < end {
			base = end&^(1<<20-1) + 2<<20
		}
	}
	return base
}

// AllocShared implements probe.Detours.
func (f *Fake) AllocShared(size int, user bool) (guest.GVA, []byte, error) {
	f.allocMu.Lock()
	defer f.allocMu.Unlock()
	size = (size + guest.PageSize - 1) &^ (guest.PageSize - 1)
	room := uint64(size + guest.PageSize) // with a hole
	base, ok := f.shared.Find(room, guest.PageSize, nil)
	if !ok {
		return 0, nil, errors.New("shared memory is used up")
	}
	f.shared.Take(base, room)
	b := make([]byte, size)
	f.mem.add(&region{base: guest.GVA(base), data: b, words: guest.AtomicWords(b), write: true, user: user})
	return guest.GVA(base), b, nil
}

// FreeShared implements probe.Detours. A later use of the memory faults.
func (f *Fake) FreeShared(addr guest.GVA) {
	f.allocMu.Lock()
	defer f.allocMu.Unlock()
	if r := f.mem.find(addr); r != nil && r.base == addr && r.words != nil {
		f.mem.remove(r)
		f.shared.Add(uint64(addr), uint64(len(r.data)+guest.PageSize))
	}
}

// MapExec implements probe.Detours.
func (f *Fake) MapExec(near, addr guest.GVA, n int) error {
	f.allocMu.Lock()
	defer f.allocMu.Unlock()
	s, _ := f.img.Find(near)
	page := addr &^ (guest.PageSize - 1)
	switch r := f.mem.find(page); {
	case (addr+guest.GVA(n)-1)&^(guest.PageSize-1) != page:
		return errors.New("the fake maps single pages")
	case r != nil && r.slots && r.user == s.User:
		return nil
	case r != nil || f.mem.find(page+guest.PageSize-1) != nil:
		return guest.ErrMapped
	}
	f.mem.add(&region{base: page, data: bytes.Repeat([]byte{0xcc}, guest.PageSize), exec: true, user: s.User, slots: true})
	return nil
}

// OneMapping implements probe.Detours.
func (f *Fake) OneMapping(bool) string { return "" }

// Profile implements probe.Detours: each stack has the number of its vCPU
// at its lowest address.
func (f *Fake) Profile(user bool) (guest.Profile, bool) {
	if k, ok := f.syms.(*Kernel); ok && k.GS {
		p, _ := k.Profile()
		return p, !user
	}
	if f.prof {
		p, err := f.img.Profile()
		return p, err == nil
	}
	return guest.Profile{StackMask: ^uint64(stackSize - 1), StackMagic: stackMagic, CPUOff: 8}, true
}

// stackMagic marks the lowest addresses of a stack.
const stackMagic = 0x6b63617473656b61

// WriteExec implements probe.Target.
func (f *Fake) WriteExec(addr guest.GVA, p []byte) error {
	b, err := f.mem.span(addr, len(p), mode{exec: true})
	if err == nil {
		copy(b, p)
	}
	return err
}

// OnVCPU implements probe.Runner.
func (f *Fake) OnVCPU() bool {
	tid := int64(unix.Gettid())
	for _, v := range f.cpus {
		if v.tid.Load() == tid {
			return true
		}
	}
	return false
}

// Stop implements probe.Target.
func (f *Fake) Stop(do func(probe.World) error) error {
	if f.OnVCPU() {
		return probe.ErrInHandler
	}
	f.stops.Lock()
	defer f.stops.Unlock()
	f.stopping.Add(1)
	f.gate.Lock()
	defer f.gate.Unlock()
	f.stopping.Add(-1)
	return do(world{f})
}

// world is the fake while it is stopped.
type world struct{ f *Fake }

// PatchText implements probe.World.
func (w world) PatchText(addr guest.GVA, old, new []byte) error {
	return w.f.mem.patch(addr, old, new)
}

// CPU implements probe.World.
func (w world) CPU(i int) probe.State { return w.f.cpus[i].state() }

// Words implements probe.World.
func (w world) Words(ranges []code.Range, found func(guest.GVA)) bool {
	var in [2]guest.Window
	for i, r := range ranges {
		in[i] = guest.Window{Lo: uint64(r.Start), N: uint64(r.End - r.Start)}
	}
	word := func(v uint64) { found(guest.GVA(v)) }
	for _, v := range w.f.cpus {
		for _, x := range v.regs.Values() {
			if x-in[0].Lo < in[0].N || x-in[1].Lo < in[1].N {
				word(x)
			}
		}
	}
	for _, r := range *w.f.mem.regions.Load() {
		if r.write && r.words == nil {
			guest.Scan(r.data, in[0], in[1], word)
			guest.ScanUneven(r.data, in[0], in[1], func(_ int, v uint64) { word(v) })
		}
	}
	return true
}

// Registers implements probe.Memory: the fake's vCPUs have general registers only.
func (w world) Registers(func(reg []byte, ip bool)) error { return nil }

var _ probe.Memory = world{}

// Pieces implements probe.Memory: physical addresses equal the virtual ones. A
// piece is small, and comes before pieces at lower addresses; any order is
// allowed.
func (w world) Pieces(f func(guest.GPA, []byte, func(guest.GPA) []byte) error) error {
	const size = 64
	more := func(pa guest.GPA) []byte {
		at := guest.GVA(pa)
		if r := w.f.mem.find(at); r != nil && r.write && r.words == nil && len(r.data)-int(at-r.base) >= 8 {
			return r.data[at-r.base:][:8]
		}
		return nil
	}
	for _, r := range *w.f.mem.regions.Load() {
		if !r.write || r.words != nil {
			continue
		}
		for off := (len(r.data) - 1) / size * size; off >= 0; off -= size {
			if err := f(guest.GPA(r.base)+guest.GPA(off), r.data[off:min(len(r.data), off+size)], more); err != nil {
				return err
			}
		}
	}
	return nil
}

// CallGuest implements probe.Runner.
func (f *Fake) CallGuest(cpu int, addr guest.GVA, args []uint64) (uint64, error) {
	v := f.cpus[cpu]
	saved, halted, cpl := v.regs, v.halted, v.cpl
	v.nest++
	defer func() {
		v.nest--
		v.regs, v.halted, v.cpl = saved, halted, cpl
	}()
	return v.call(addr, (v.regs.RSP-256)&^15, 0, args)
}

// Call implements Harness.
func (f *Fake) Call(cpu int, fn guest.GVA, args ...uint64) (uint64, error) {
	c := call{fn: fn, args: args, reply: make(chan reply)}
	f.cpus[cpu].calls <- c
	r := <-c.reply
	return r.value, r.err
}

// Symbol implements Harness.
func (f *Fake) Symbol(name string) (guest.Symbol, error) { return f.img.Lookup(name) }

// Read implements Harness.
func (f *Fake) Read(addr guest.GVA, p []byte) error { return f.ReadMemory(0, addr, p) }

// Write implements Harness.
func (f *Fake) Write(addr guest.GVA, p []byte) error { return f.WriteMemory(0, addr, p) }

// Can implements Harness: the fake can do everything.
func (f *Fake) Can(Capability) bool { return true }

// Poke changes any byte of guest memory, text included, as a misbehaving guest
// would. No Call may be under way.
func (f *Fake) Poke(addr guest.GVA, p []byte) error {
	return f.Stop(func(probe.World) error { return f.mem.write(addr, p, mode{poke: true}) })
}

// load64 reads the variable name.
func (f *Fake) load64(name string) uint64 {
	s, err := f.img.Lookup(name)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	var b [8]byte
	if err := f.Read(s.Addr, b[:]); err != nil {
		panic("BUG: " + err.Error())
	}
	return binary.LittleEndian.Uint64(b[:])
}
