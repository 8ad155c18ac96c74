package evbpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

const (
	page               = 4096
	text     guest.GVA = 0xffffffff81001000
	data     guest.GVA = 0xffffffff82000000
	mapped   guest.GVA = 0x10000 // two pages; what is around them faults
	longText guest.GVA = 0x40000 // three pages without a NUL, then one with
)

// image is a guest's symbols in plain Go.
type image struct{}

var symbols = []guest.Symbol{
	{Name: "vfs_read", Addr: text, Size: 0x370, Kind: guest.SymFunc},
	{Name: "_sdata", Addr: data, Size: 0x100, Kind: guest.SymData},
}

func (image) Lookup(name string) (guest.Symbol, error) {
	for _, s := range symbols {
		if s.Name == name {
			return s, nil
		}
	}
	return guest.Symbol{}, guest.ErrSymbolNotFound
}

func (image) Find(addr guest.GVA) (guest.Symbol, bool) {
	for _, s := range symbols {
		if addr >= s.Addr && uint64(addr-s.Addr) < s.Size {
			return s, true
		}
	}
	return guest.Symbol{}, false
}

func (image) IsText(addr guest.GVA) bool               { return addr >= text && addr < data }
func (image) Code(_ guest.GVA, n int) []byte           { return slices.Repeat([]byte{0x90}, n) }
func (image) Blacklisted(guest.GVA) string             { return "" }
func (image) String() string                           { return "image" }
func (t *target) NumCPU() int                          { return 2 }
func (t *target) Capabilities(bool) probe.Capabilities { return probe.Capabilities{} }
func (t *target) Symbols() probe.Symbols               { return image{} }
func (t *target) CPU(int) probe.State                  { return probe.State{Regs: new(probe.Regs)} }
func (t *target) WriteExec(guest.GVA, []byte) error    { return nil }

// target is a guest whose memory is a set of pages.
type target struct {
	pages map[guest.GVA]*[page]byte
}

var errBad = errors.New("bad address")

func (t *target) ReadMemory(_ guest.GPA, addr guest.GVA, p []byte) error {
	for len(p) > 0 {
		b := t.pages[addr&^(page-1)]
		if b == nil {
			return errBad
		}
		n := copy(p, b[addr%page:])
		p, addr = p[n:], addr+guest.GVA(n)
	}
	return nil
}

func (t *target) WriteMemory(guest.GPA, guest.GVA, []byte) error { return errBad }

func (t *target) Stop(f func(probe.World) error) error { return f(t) }

func (t *target) AllocExec(_ guest.GVA, size int) (guest.GVA, error) { return text - 0x100000, nil }

func (t *target) PatchText(guest.GVA, []byte, []byte) error { return nil }

// set writes p at addr, mapping what is not there.
func (t *target) set(addr guest.GVA, p []byte) {
	for len(p) > 0 {
		b := t.pages[addr&^(page-1)]
		if b == nil {
			b = new([page]byte)
			t.pages[addr&^(page-1)] = b
		}
		n := copy(b[addr%page:], p)
		p, addr = p[n:], addr+guest.GVA(n)
	}
}

// newTarget has pointers into themselves, small numbers and short texts in its
// pages.
func newTarget(r *rand.Rand) *target {
	t := &target{pages: map[guest.GVA]*[page]byte{}}
	b := make([]byte, 2*page)
	for i := 0; i < len(b); i += 8 {
		switch r.IntN(5) {
		case 0:
			binary.LittleEndian.PutUint64(b[i:], uint64(mapped)-32+uint64(r.IntN(2*page+64)))
		case 1:
			binary.LittleEndian.PutUint64(b[i:], uint64(r.IntN(256)))
		case 2:
			copy(b[i:], "textual"[r.IntN(7):])
		case 3:
			binary.LittleEndian.PutUint64(b[i:], r.Uint64()&0x7f7f7f7f7f7f7f7f)
		case 4:
			// Addresses of a program's own memory, and of long texts.
			binary.LittleEndian.PutUint64(b[i:], []uint64{1 << 48, 2<<48 + 64, 7 << 48, uint64(longText) + uint64(r.IntN(page))}[r.IntN(4)])
		}
	}
	t.set(mapped, b)
	t.set(data, b[:page])
	t.set(longText, bytes.Repeat([]byte("long text "), 3*page/10))
	t.set(longText+3*page-8, []byte("xxxxxxxx\x00"))
	t.set(text, slices.Repeat([]byte{0x90}, page))
	return t
}

func randomRegs(r *rand.Rand) *probe.Regs {
	in := func() uint64 {
		switch r.IntN(12) {
		case 0:
			return r.Uint64()
		case 1:
			return uint64(1+r.IntN(12))<<48 | uint64(r.IntN(256))
		case 2:
			return uint64(longText) + uint64(r.IntN(3*page))
		case 3:
			return uint64(longText) + 3*page - textRead - 3 + uint64(r.IntN(6))
		}
		return uint64(mapped) + uint64(r.IntN(2*page))
	}
	return &probe.Regs{
		RAX: in(), RBX: in(), RCX: in(), RDX: in(), RSI: in(), RDI: in(), RSP: in(), RBP: in(), R8: in(), R9: in(), R10: in(),
		R11: in(), R12: in(), R13: in(), R14: uint64(text) + 3, R15: r.Uint64(), RIP: uint64(text) + 1, RFLAGS: 2 | uint64(r.IntN(2))<<9,
	}
}

// inHandler runs f in the handler of a hit.
func inHandler(t testing.TB, g *target, f func(*probe.Context)) {
	t.Helper()
	e, err := probe.New(g, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ran, panicked := false, any(nil)
	k := &probe.Kprobe{Symbol: "vfs_read", Pre: func(c *probe.Context) int {
		ran = true
		defer func() { panicked = recover() }() // the engine would contain it
		f(c)
		return 0
	}}
	if err := e.Register(k); err != nil {
		t.Fatal(err)
	}
	e.Hit(1, probe.State{Regs: &probe.Regs{RIP: uint64(text), RFLAGS: 2}}, probe.Trap{Kind: probe.TrapBreakpoint})
	if !ran || panicked != nil {
		t.Fatalf("handler: ran %v, %v", ran, panicked)
	}
}

// task is the profile of a guest whose tasks are told by R15.
type task struct{}

func (task) Task(c *probe.Context, comm []byte) (int32, bool) {
	switch c.Regs.R15 % 4 {
	case 0:
		return 0, false
	case 1:
		clear(comm)
		return -1, true
	}
	copy(comm, fmt.Sprintf("task%d\x00", c.Regs.R15%5))
	return int32(c.Regs.R15 >> 40), true
}

// env runs programs at a hit.
type env struct {
	bpf.NoEnv
	c *probe.Context
}

func (e *env) Now() uint64 { return 0x1122334455667788 }

func (e *env) PIDTGID() uint64 {
	pid, ok := task{}.Task(e.c, make([]byte, 16))
	if !ok {
		pid = 0
	}
	return 77<<32 | uint64(uint32(pid))
}

func (e *env) Comm(b *[16]byte) {
	clear(b[:])
	if _, ok := (task{}).Task(e.c, b[:]); !ok {
		clear(b[:])
	}
}

func (e *env) ReadKernel(addr uint64, p []byte) error { return e.c.Read(guest.GVA(addr), p) }
func (e *env) ReadUser(addr uint64, p []byte) error   { return e.c.Read(guest.GVA(addr), p) }

// shared is memory with made-up guest addresses, so that programs compile.
type shared struct{ next uint64 }

func (s *shared) Alloc(n int) (bpf.Area, error) {
	a, err := bpf.Heap{}.Alloc(n)
	s.next += 1 << 30
	a.Addr = s.next
	return a, err
}

func (s *shared) Free(bpf.Area) {}
