package probetest

import (
	"errors"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/code"
)

// BareStack is the address of a Bare's stacks, 4096 bytes for each vCPU and as many before the first.
const BareStack guest.GVA = 0x7000_0000

// Bare is an image in plain memory with an engine on it, and without processors: a test makes the hits itself. It is a probe.Target
// with nothing that a Target may leave out.
type Bare struct {
	img    *guest.Image
	view   func() guest.View
	cpus   int
	engine *probe.Engine

	// world is held for writing while the world is stopped, for reading by a hit.
	world sync.RWMutex
	mem   []bareArea
}

type bareArea struct {
	addr guest.GVA
	data []byte
}

// NewBare returns a guest with this image. The view gives it its symbols; nil means that the image does.
func NewBare(img *guest.Image, cpus int, view func() guest.View) (*Bare, error) {
	b := &Bare{img: img, view: view, cpus: cpus}
	if view == nil {
		b.view = func() guest.View { return img }
	}
	b.load()
	var err error
	b.engine, err = probe.New(b, probe.Options{OptimizeDelay: -1})
	return b, err
}

func (b *Bare) load() {
	b.mem = []bareArea{{BareStack, make([]byte, 64<<10)}}
	for _, s := range b.img.Segments {
		data := make([]byte, s.MemSize)
		copy(data, s.Data)
		b.mem = append(b.mem, bareArea{s.VAddr, data})
	}
}

var errBareMemory = errors.New("fake memory: not mapped")

// At returns n bytes of memory as they are.
func (b *Bare) At(addr guest.GVA, n int) ([]byte, error) {
	for _, a := range b.mem {
		if off := uint64(addr - a.addr); off < uint64(len(a.data)) && off+uint64(n) <= uint64(len(a.data)) {
			return a.data[off : off+uint64(n)], nil
		}
	}
	return nil, errBareMemory
}

// Engine returns the engine.
func (b *Bare) Engine() *probe.Engine { return b.engine }

// Target returns b.
func (b *Bare) Target() probe.Target { return b }

// Image returns the image as its names are now.
func (b *Bare) Image() guest.View { return b.view() }

// Reload boots the image again.
func (b *Bare) Reload() error {
	return b.engine.Reload(func(save func()) (bool, error) {
		b.world.Lock()
		defer b.world.Unlock()
		save()
		b.load()
		return true, nil
	})
}

// Deliver hands the engine a trap, unless the world is stopped.
func (b *Bare) Deliver(cpu int, s probe.State, t probe.Trap) probe.Verdict {
	b.world.RLock()
	defer b.world.RUnlock()
	return b.engine.Hit(cpu, s, t)
}

// endbr64 may be at a function's entry; probes then are after it, and offset 0 means there.
const endbr64 = "\xf3\x0f\x1e\xfa"

// Hit lets vCPU cpu arrive at a symbol of the image; set, if not nil, sets registers. True means that a probe was there.
func (b *Bare) Hit(cpu int, symbol string, offset uint64, set func(*probe.Regs)) (bool, error) {
	sym, err := b.img.Lookup(symbol)
	if err != nil {
		return false, err
	}
	b.world.RLock()
	defer b.world.RUnlock()
	if offset == 0 && string(b.img.Code(sym.Addr, 4)) == endbr64 {
		offset = 4
	}
	if text, err := b.At(sym.Addr+guest.GVA(offset), 1); err != nil || text[0] != 0xcc {
		return false, nil // nothing traps there
	}
	regs := &probe.Regs{RIP: uint64(sym.Addr) + offset, RSP: uint64(BareStack) + uint64(cpu+1)<<12, RFLAGS: 0x202}
	if set != nil {
		set(regs)
	}
	s := probe.State{Regs: regs}
	if sym.User {
		s.CPL = 3
	}
	return b.engine.Hit(cpu, s, probe.Trap{Kind: probe.TrapBreakpoint}).Action == probe.Resume, nil
}

// NumCPU implements probe.Target.
func (b *Bare) NumCPU() int { return b.cpus }

// Symbols implements probe.Target.
func (b *Bare) Symbols() probe.Symbols { return b.view() }

// Capabilities implements probe.Target.
func (b *Bare) Capabilities(bool) probe.Capabilities { return probe.Capabilities{} }

// ReadMemory implements probe.Target.
func (b *Bare) ReadMemory(_ guest.GPA, addr guest.GVA, p []byte) error {
	m, err := b.At(addr, len(p))
	copy(p, m)
	return err
}

// WriteMemory implements probe.Target.
func (b *Bare) WriteMemory(_ guest.GPA, addr guest.GVA, p []byte) error {
	m, err := b.At(addr, len(p))
	copy(m, p)
	return err
}

// Stop implements probe.Target.
func (b *Bare) Stop(f func(probe.World) error) error {
	b.world.Lock()
	defer b.world.Unlock()
	return f(bareWorld{b})
}

// AllocExec implements probe.Target.
func (b *Bare) AllocExec(near guest.GVA, size int) (guest.GVA, error) {
	a := near&^(1<<20-1) + guest.GVA(64<<20+1<<20*len(b.mem))
	b.mem = append(b.mem, bareArea{a, make([]byte, size)})
	return a, nil
}

// WriteExec implements probe.Target.
func (b *Bare) WriteExec(addr guest.GVA, p []byte) error { return b.WriteMemory(0, addr, p) }

type bareWorld struct{ b *Bare }

// PatchText implements probe.World.
func (w bareWorld) PatchText(addr guest.GVA, old, new []byte) error {
	text, err := w.b.At(addr, len(old))
	if err != nil {
		return err
	}
	if string(text) != string(old) {
		return &guest.TextMismatchError{Addr: addr, Want: old, Got: text}
	}
	copy(text, new)
	return nil
}

// CPU implements probe.World.
func (w bareWorld) CPU(int) probe.State { return probe.State{Regs: &probe.Regs{}} }

// Words implements probe.World.
func (w bareWorld) Words([]code.Range, func(guest.GVA)) bool { return false }
