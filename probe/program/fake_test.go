package program

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

const (
	page               = 4096
	text     guest.GVA = 0xffffffff81001000
	stack    guest.GVA = 0xffffffff83000000 // one page, aligned to it
	strings_ guest.GVA = 0xffffffff84000000
)

// parsed is the guest's image: a function of nops, a stack, and a string.
var parsed = sync.OnceValues(func() (*guest.Image, error) {
	const readable, writable = elf.PF_R, elf.PF_R | elf.PF_W
	f := elfbuild.File{Entry: text, Segments: []elfbuild.Segment{
		{Section: ".text", VAddr: text, PAddr: 0x100000, Flags: readable | elf.PF_X, Data: slices.Repeat([]byte{0x90}, page)},
		{Section: ".stack", VAddr: stack, PAddr: 0x200000, Flags: writable, MemSize: page},
		{Section: ".strings", VAddr: strings_, PAddr: 0x300000, Flags: readable, Data: []byte("/etc/passwd\x00"), MemSize: page},
	}, Symbols: []elfbuild.Symbol{{Name: "vfs_read", Addr: text, Size: 0x370, Type: elf.STT_FUNC}}}
	return f.Image()
})

// image is the guest's image with the profile that a test gives it.
type image struct {
	*guest.Image
	profile guest.Profile
}

func (i image) Profile() (guest.Profile, error) { return i.profile, nil }

func newImage(t testing.TB, p guest.Profile) image {
	t.Helper()
	img, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return image{img, p}
}

// fake is a guest that a test hits itself, with memory that the runtime shares at
// invented addresses.
type fake struct {
	*probetest.Fake
	t      testing.TB
	engine *probe.Engine

	mu     sync.Mutex
	left   int          // bytes of shared memory
	shared [2]handedOut // by 1 = for code of CPL3
	base   guest.GVA    // of that for code of CPL0
	stops  int
}

func newFake(t testing.TB) *fake { return newFakeOf(t, profile, probe.Capabilities{}) }

func newFakeOf(t testing.TB, p guest.Profile, can probe.Capabilities) *fake {
	t.Helper()
	img := newImage(t, p)
	f := &fake{t: t, left: 64 << 20, base: kernelData}
	var err error
	if f.Fake, err = probetest.NewFake(probetest.FakeOptions{
		CPUs: 2, Still: true, Bare: true, Image: img.Image,
		Symbols: func(*guest.Image) probe.Symbols { return img }, Can: func(bool) probe.Capabilities { return can },
	}); err != nil {
		t.Fatal(err)
	}
	f.engine = f.Engine()
	return f
}

// set writes to the guest's memory.
func (f *fake) set(addr guest.GVA, p []byte) {
	f.t.Helper()
	b, err := f.BytesAt(addr, len(p))
	if err != nil {
		f.t.Fatal(err)
	}
	copy(b, p)
}

func (f *fake) stop(do func() error) error { f.stops++; return do() }

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

// SharedBase implements Shared.
func (f *fake) SharedBase(user bool) guest.GVA {
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
		Clock: func() (Clock, error) { return Clock{Clock: bpf.Clock{TSC: 5, Mult: 1 << 32, Time: 7}}, nil },
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

// sink collects the recorded and emitted data.
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
