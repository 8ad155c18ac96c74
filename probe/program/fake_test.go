package program

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/code"
	"github.com/guestprobe/guestprobe/probe/event"
)

const (
	page               = 4096
	text     guest.GVA = 0xffffffff81001000
	stack    guest.GVA = 0xffffffff83000000 // one page, aligned to it
	strings_ guest.GVA = 0xffffffff84000000
)

// image is a guest's symbols in plain Go.
type image struct{ profile guest.Profile }

func (image) Lookup(name string) (guest.Symbol, error) {
	if name == "vfs_read" {
		return guest.Symbol{Name: name, Addr: text, Size: 0x370, Kind: guest.SymFunc}, nil
	}
	return guest.Symbol{}, guest.ErrSymbolNotFound
}

func (i image) Find(addr guest.GVA) (guest.Symbol, bool) {
	if addr >= text && addr < text+0x370 {
		s, _ := i.Lookup("vfs_read")
		return s, true
	}
	return guest.Symbol{}, false
}

func (i image) Symbols() []guest.Symbol {
	s, _ := i.Lookup("vfs_read")
	return []guest.Symbol{s}
}

func (image) Text(user bool) []guest.Range {
	if user {
		return nil
	}
	return []guest.Range{{Start: text, End: text + page}}
}

func (image) Constant(guest.GVA, int) []byte              { return nil }
func (image) Data(guest.GVA, guest.GVA) string            { return "" }
func (image) FrameRule(guest.GVA) (guest.FrameRule, bool) { return guest.FrameRule{}, false }
func (i image) Profile() (guest.Profile, error)           { return i.profile, nil }
func (image) IsText(addr guest.GVA) bool                  { return addr >= text && addr < text+page }
func (image) Code(_ guest.GVA, n int) []byte              { return slices.Repeat([]byte{0x90}, n) }
func (image) Blacklisted(guest.GVA) string                { return "" }

// fake is a guest in plain memory that a test hits itself, with memory that it
// shares at made-up addresses.
type fake struct {
	engine  *probe.Engine
	profile guest.Profile
	can     probe.Capabilities
	pages   map[guest.GVA]*[page]byte
	next    guest.GVA

	mu     sync.Mutex
	left   int          // bytes of shared memory
	shared [2]handedOut // by 1 = for code of CPL3
	base   guest.GVA    // of that for code of CPL0
	stops  int
}

var errBad = errors.New("bad address")

func newFake(t testing.TB) *fake { return newFakeOf(t, profile, probe.Capabilities{}) }

func newFakeOf(t testing.TB, p guest.Profile, can probe.Capabilities) *fake {
	t.Helper()
	f := &fake{profile: p, can: can, pages: map[guest.GVA]*[page]byte{}, next: text - 0x100000, left: 64 << 20, base: kernelData}
	f.set(text, slices.Repeat([]byte{0x90}, page))
	f.set(stack, make([]byte, page))
	f.set(strings_, []byte("/etc/passwd\x00"))
	var err error
	if f.engine, err = probe.New(f, probe.Options{}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fake) set(addr guest.GVA, p []byte) {
	for len(p) > 0 {
		b := f.pages[addr&^(page-1)]
		if b == nil {
			b = new([page]byte)
			f.pages[addr&^(page-1)] = b
		}
		n := copy(b[addr%page:], p)
		p, addr = p[n:], addr+guest.GVA(n)
	}
}

func (f *fake) NumCPU() int { return 2 }

func (f *fake) Capabilities(bool) probe.Capabilities { return f.can }

func (f *fake) ReadMemory(_ guest.GPA, addr guest.GVA, p []byte) error {
	for len(p) > 0 {
		b := f.pages[addr&^(page-1)]
		if b == nil {
			return errBad
		}
		n := copy(p, b[addr%page:])
		p, addr = p[n:], addr+guest.GVA(n)
	}
	return nil
}

func (f *fake) WriteMemory(_ guest.GPA, addr guest.GVA, p []byte) error {
	f.set(addr, p)
	return nil
}

func (f *fake) Stop(do func(probe.World) error) error { return do(f) }

func (f *fake) AllocExec(_ guest.GVA, size int) (guest.GVA, error) {
	a := f.next
	f.set(a, make([]byte, size))
	f.next += guest.GVA(size+page-1) &^ (page - 1)
	return a, nil
}

func (f *fake) WriteExec(addr guest.GVA, p []byte) error      { f.set(addr, p); return nil }
func (f *fake) Symbols() probe.Symbols                        { return image{f.profile} }
func (f *fake) PatchText(addr guest.GVA, _, new []byte) error { f.set(addr, new); return nil }
func (f *fake) CPU(int) probe.State                           { return probe.State{Regs: new(probe.Regs)} }
func (f *fake) Words([]code.Range, func(guest.GVA)) bool      { return false }
func (f *fake) stop(do func() error) error                    { f.stops++; return do() }
func (f *fake) hit(cpu int, regs *probe.Regs) probe.Verdict {
	regs.RIP = uint64(text)
	return f.engine.Hit(cpu, probe.State{Regs: regs}, probe.Trap{Kind: probe.TrapBreakpoint})
}

// AllocShared implements Shared.
func (f *fake) AllocShared(size int, user bool) (guest.GVA, []byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := &f.shared[guest.Level(user)]
	if size > f.left {
		return 0, nil, fmt.Errorf("no memory is left: %w", syscall.ENOMEM)
	}
	f.left -= size
	a, err := bpf.Heap{}.Alloc((size + 63) &^ 63)
	x.next += 64 + len(a.Bytes)
	a.Addr = uint64(f.base) + uint64(x.next)
	if user {
		a.Addr = userData + uint64(x.next)
	}
	a.Bytes = a.Bytes[:size]
	x.areas = append(x.areas, a)
	return guest.GVA(a.Addr), a.Bytes, err
}

// FreeShared implements Shared.
func (f *fake) FreeShared(addr guest.GVA) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.shared {
		x := &f.shared[i]
		k := slices.IndexFunc(x.areas, func(a bpf.Area) bool { return a.Addr == uint64(addr) })
		if k < 0 {
			continue
		}
		f.left += len(x.areas[k].Bytes)
		x.areas = slices.Delete(x.areas, k, k+1)
		return
	}
	panic(fmt.Sprintf("nothing is held at %v", addr))
}

// SharedAt implements Shared.
func (f *fake) SharedAt(user bool) guest.GVA {
	if user {
		return userData
	}
	return f.base
}

// Where the memory of each privilege begins.
const (
	kernelData = 0xffffffffc0000000
	userData   = 0x5a5a40000000
)

// handedOut is the shared memory of one privilege.
type handedOut struct {
	areas []bpf.Area
	next  int
}

// scribble writes over everything that the guest can write.
func (f *fake) scribble(next func() byte) {
	for i := range f.shared {
		for _, a := range f.shared[i].areas {
			for j := range a.Bytes {
				a.Bytes[j] = next()
			}
		}
	}
}

// reset zeroes everything that is shared.
func (f *fake) reset() {
	for i := range f.shared {
		for _, a := range f.shared[i].areas {
			clear(a.Bytes)
		}
	}
}

var profile = guest.Profile{StackMask: ^uint64(page - 1), StackMagic: 0x1122334455667788, MagicOff: 0, CPUOff: 8, PIDOff: 12, TGIDOff: 16, CommOff: 24}

// task writes whose stack it is.
func (f *fake) task(pid, tgid byte, comm string) {
	b := make([]byte, 40)
	copy(b, []byte{0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11})
	b[12], b[16] = pid, tgid
	copy(b[24:], comm)
	f.set(stack, b)
}

// config is a runtime's with everything there.
func (f *fake) config() Config {
	return Config{
		CPUs: 2, Shared: f, Engine: f.engine, Stop: f.stop, Now: func() int64 { return 1000 },
		Clock: func() (bpf.Clock, error) { return bpf.Clock{TSC: 5, Mult: 1 << 32, Time: 7}, nil },
	}
}

func newRuntime(t testing.TB, cfg Config) *Runtime {
	rt := New(cfg)
	return rt
}

func example(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../probe/bpf/testdata/obj", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sink collects what is recorded and emitted.
type sink struct {
	id    uint32
	depth int    // Begin and End
	full  bool   // there is no room
	made  []byte // of Reserve

	mu   sync.Mutex
	recs [][]byte
	cpus []int
	lost uint64
}

func newSink(id uint32) *sink { return &sink{id: id} }

func (s *sink) Mark(stage event.Moment) uint32 { return s.id<<2 | uint32(stage) }
func (s *sink) Begin(int)                      { s.depth++ }
func (s *sink) End(int)                        { s.depth-- }

func (s *sink) Reserve(cpu, n int) []byte {
	if s.full {
		s.Lose(cpu, 1)
		return nil
	}
	s.made = make([]byte, n)
	return s.made
}

func (s *sink) Submit(cpu int, keep bool) { s.PutRecord(cpu, s.made) }

func (s *sink) Put(cpu int, _ int64, data []byte) bool { return s.PutRecord(cpu, data) }

func (s *sink) PutRecord(cpu int, data []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recs, s.cpus = append(s.recs, bytes.Clone(data)), append(s.cpus, cpu)
	return true
}

func (s *sink) Lose(_ int, n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost += n
}

func (s *sink) take() (recs [][]byte, lost uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recs, s.lost
}
