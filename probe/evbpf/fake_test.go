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
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

var le = binary.LittleEndian

const (
	page               = 4096
	text     guest.GVA = 0xffffffff81001000
	data     guest.GVA = 0xffffffff82000000 // for the kernel only
	mapped   guest.GVA = 0x10000            // two pages; the memory around them faults
	longText guest.GVA = 0x40000            // three pages without a NUL, then one with
)

// image is a guest's symbols in plain Go.
type image []guest.Symbol

var kernel = image{
	{Name: "vfs_read", Addr: text, Size: 0x370, Kind: guest.SymFunc},
	{Name: "ksys_read", Addr: text + 0x500, Size: 0xf0, Kind: guest.SymFunc},
	{Name: "_sdata", Addr: data, Size: 0x100, Kind: guest.SymData},
	{Name: "jiffies", Addr: data + 0x140, Size: 8, Kind: guest.SymData},
}

// scope has the types of those functions too.
var scope = event.Scope{Symbols: kernel, Types: func() event.Types {
	spec, err := types.Read(kerneltest.Types(), nil)
	if err != nil {
		panic(err)
	}
	return types.New(spec, nil)
}()}

func (s image) Lookup(name string) (guest.Symbol, error) {
	for _, y := range s {
		if y.Name == name {
			return y, nil
		}
	}
	return guest.Symbol{}, guest.ErrSymbolNotFound
}

func (s image) Find(addr guest.GVA) (guest.Symbol, bool) {
	for _, y := range s {
		if addr >= y.Addr && uint64(addr-y.Addr) < y.Size {
			return y, true
		}
	}
	return guest.Symbol{}, false
}

func (image) IsText(addr guest.GVA) bool       { return addr >= text && addr < data }
func (image) Code(_ guest.GVA, n int) []byte   { return slices.Repeat([]byte{0x90}, n) }
func (image) BlacklistReason(guest.GVA) string { return "" }

// memory is a guest's, as a set of pages.
type memory map[guest.GVA]*[page]byte

var errBad = errors.New("bad address")

// read reads with the rights of a privilege level.
func (m memory) read(addr guest.GVA, p []byte, cpl uint8) error {
	for len(p) > 0 {
		b := m[addr&^(page-1)]
		if b == nil || cpl != 0 && addr >= text {
			return errBad
		}
		n := copy(p, b[addr%page:])
		p, addr = p[n:], addr+guest.GVA(n)
	}
	return nil
}

// set writes p at addr, mapping pages that do not exist.
func (m memory) set(addr guest.GVA, p []byte) {
	for len(p) > 0 {
		b := m[addr&^(page-1)]
		if b == nil {
			b = new([page]byte)
			m[addr&^(page-1)] = b
		}
		n := copy(b[addr%page:], p)
		p, addr = p[n:], addr+guest.GVA(n)
	}
}

// randomMemory has pointers into itself, small numbers and short texts.
func randomMemory(r *rand.Rand) memory {
	m := memory{}
	b := make([]byte, 2*page)
	for i := 0; i < len(b); i += 8 {
		switch r.IntN(5) {
		case 0:
			le.PutUint64(b[i:], uint64(mapped)-32+uint64(r.IntN(2*page+64)))
		case 1:
			le.PutUint64(b[i:], uint64(r.IntN(256)))
		case 2:
			copy(b[i:], "textual"[r.IntN(7):])
		case 3:
			le.PutUint64(b[i:], r.Uint64()&0x7f7f7f7f7f7f7f7f)
		case 4:
			// Addresses of a program's own memory, of long texts, and of what only the
			// kernel may read.
			le.PutUint64(b[i:], []uint64{1 << 48, 2<<48 + 64, 7 << 48, uint64(longText) + uint64(r.IntN(page)), uint64(data) + uint64(r.IntN(64))}[r.IntN(5)])
		}
	}
	m.set(mapped, b)
	m.set(data, b[:page])
	m.set(longText, bytes.Repeat([]byte("long text "), 3*page/10))
	m.set(longText+3*page-8, []byte("xxxxxxxx\x00"))
	return m
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
			return uint64(longText) + 3*page - event.MaxText - 3 + uint64(r.IntN(6))
		}
		return uint64(mapped) + uint64(r.IntN(2*page))
	}
	return &probe.Regs{
		RAX: in(), RBX: in(), RCX: in(), RDX: in(), RSI: in(), RDI: in(), RSP: in(), RBP: in(), R8: in(), R9: in(), R10: in(),
		R11: in(), R12: in(), R13: in(), R14: uint64(text) + 3, R15: r.Uint64(), RIP: uint64(text) + 1, RFLAGS: 2 | uint64(r.IntN(2))<<9,
	}
}

// hit is what a program sees, and answers the helpers that it calls.
type hit struct {
	bpf.NoEnv
	mem   memory
	regs  *probe.Regs
	entry *probe.Regs // of a return
	cpl   uint8
	old   uint64 // of a watch
	new   uint64
	write bool

	cookie uint64
}

const (
	now     = 0x1122334455667788
	entered = 0x1122334400000000
)

func (h *hit) Now() uint64    { return now }
func (h *hit) Cookie() uint64 { return h.cookie }
func (h *hit) FuncIP() uint64 { return uint64(text) }

// task tells by R15.
func (h *hit) task() (pid int32, comm string) {
	switch h.regs.R15 % 4 {
	case 0:
		return 0, ""
	case 1:
		return -1, ""
	}
	return int32(h.regs.R15 >> 40), fmt.Sprintf("task%d", h.regs.R15%5)
}

func (h *hit) PIDTGID() uint64 {
	pid, _ := h.task()
	return 77<<32 | uint64(uint32(pid))
}

func (h *hit) Comm(b *[16]byte) {
	_, comm := h.task()
	clear(b[copy(b[:], comm):])
}

func (h *hit) ReadKernel(addr uint64, p []byte) error { return h.mem.read(guest.GVA(addr), p, h.cpl) }
func (h *hit) ReadUser(addr uint64, p []byte) error   { return errBad } // no program asks for it

func (h *hit) WatchNumber(n uint64) uint64 {
	if n == uint64(event.WatchedWrite) {
		return map[bool]uint64{true: 1}[h.write]
	}
	return [2]uint64{h.old, h.new}[n]
}

func (h *hit) EntryArg(n uint64, p []byte) error {
	return h.mem.read(guest.GVA(h.entry.RSP+8*(n-6)), p, h.cpl)
}

// context writes the context of a program into b.
func (h *hit) context(b []byte, kind event.Kind) []byte {
	cs, ss := uint16(0x08), uint16(0x10)
	if h.cpl != 0 {
		cs, ss = 0x23, 0x1b
	}
	bpf.PutRegs(b, h.regs, cs, ss)
	if kind != event.KindReturn {
		return b[:bpf.RegsSize]
	}
	bpf.PutEntry(b[bpf.RegsSize:], entered, h.entry)
	return b[:bpf.ReturnSize]
}

// shared is memory with invented guest addresses, so that programs compile.
type shared struct{ next uint64 }

func (s *shared) Alloc(n int) (bpf.Area, error) {
	a, err := bpf.Heap{}.Alloc(n)
	s.next += 1 << 30
	a.Addr = s.next
	return a, err
}

func (s *shared) Free(bpf.Area) {}

// rig is a definition and its program.
type rig struct {
	def    *event.Def
	l      *event.Layout
	filter *event.Filter
	prog   *bpf.Program
	maps   Maps
	vm     *bpf.VM
	ctx    []byte
}

const (
	ringSize = 1 << 18
	mark     = 0xabcd << 2
)

func compile(t testing.TB, def string, opt event.Options) *event.Layout {
	t.Helper()
	d, err := event.ParseIn(def, scope)
	if err != nil {
		t.Fatal(err)
	}
	l, err := event.Compile(d, scope, opt)
	if err != nil {
		t.Fatalf("%s: %v", d, err)
	}
	return l
}

func newRig(t testing.TB, l *event.Layout, filter string) *rig {
	t.Helper()
	r := &rig{def: l.Def(), l: l, ctx: make([]byte, bpf.ReturnSize)}
	var err error
	if filter != "" {
		if r.filter, err = l.Filter(filter); err != nil {
			t.Fatalf("%s: %v", filter, err)
		}
	}
	c := Compile(l, r.filter)
	mem := &shared{}
	make := func(spec bpf.MapSpec) *bpf.Map {
		m, err := bpf.NewMap(spec, 2, mem)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	r.maps = Maps{Ring: make(bpf.MapSpec{Name: "ring", Kind: bpf.RingBuf, MaxEntries: ringSize}), Gate: make(GateSpec)}
	if spec, ok := c.State(); ok {
		r.maps.State = make(spec)
	}
	r.open(t, Open)
	if r.prog, err = c.Program(r.maps, nil); err != nil {
		t.Fatalf("%s filter %q: %v", l.Def(), filter, err)
	}
	r.vm = bpf.NewVM(r.prog, 1)
	return r
}

func (r *rig) open(t testing.TB, to Gate) {
	if err := r.maps.Gate.Update(make([]byte, 4), [][]byte{{byte(to), 0, 0, 0, 0, 0, 0, 0}}, 0); err != nil {
		t.Fatal(err)
	}
}

// run runs the program and returns its answer and the decoded record, if any.
func (r *rig) run(t testing.TB, h *hit) (answer uint64, rec *event.Record) {
	t.Helper()
	h.cookie = uint64(mark | uint32(r.l.Moment))
	answer, err := r.vm.Run(h.context(r.ctx, r.def.Kind), h)
	if err != nil {
		t.Fatalf("%s: %v", r.def, err)
	}
	r.maps.Ring.Drain(func(b bpf.Record) bool {
		if rec != nil || le.Uint64(b.Data) != now || le.Uint32(b.Data[8:]) != mark|uint32(r.l.Moment) || b.CPU != 1 {
			t.Fatalf("%s: record %x of vCPU %d", r.def, b.Data, b.CPU)
		}
		if rec, err = r.l.Decode(b.Data); err != nil {
			t.Fatalf("%s: %v\n%x", r.def, err, b.Data)
		}
		return true
	})
	if (rec != nil) != (answer == Recorded) {
		t.Fatalf("%s: answer %d, record %v", r.def, answer, rec)
	}
	return answer, rec
}
