package machine

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// Where the hand-made test guests are linked and loaded.
const (
	tinyText = 0xffffffff81000000 // entry: first byte of code
	tinyUser = 0x400000
	tinyData = 0xffffffff81200000
	tinyPhys = 1 << 20

	tinyFlags = tinyData + 4096 - 8 // guest.SymFlags: jumps in kernel text are allowed
)

// tinySym is a function of a tinyGuest.
type tinySym struct {
	name string
	addr uint64
	size uint64
}

// tinyGuest returns the image of a guest that consists of one segment of kernel
// code, a page of data, and, when user is not empty, one segment of user code
// that holds the symbol user_fn. It promises that its kernel text runs at one address
// only, unless syms has guest.SymFlags.
func tinyGuest(t testing.TB, code, user []byte, syms ...tinySym) *guest.Image {
	t.Helper()
	type seg struct {
		flags, vaddr, paddr uint64
		data                []byte
	}
	segs := []seg{
		{uint64(elf.PF_R | elf.PF_X), tinyText, tinyPhys, code},
		{uint64(elf.PF_R | elf.PF_W), tinyData, tinyPhys + 1<<20, make([]byte, 4096)},
	}
	if !slices.ContainsFunc(syms, func(s tinySym) bool { return s.name == guest.SymFlags }) {
		syms = append(syms, tinySym{guest.SymFlags, tinyFlags, 8})
		segs[1].data[tinyFlags-tinyData] = uint8(guest.ProfileKernelOnce)
	}
	if len(user) > 0 {
		segs = append(segs, seg{uint64(elf.PF_R|elf.PF_X) | guest.PFUser, tinyUser, tinyPhys + 2<<20, user})
		syms = append(syms, tinySym{"user_fn", tinyUser, uint64(len(user))})
	}
	var b bytes.Buffer
	le := binary.LittleEndian
	put := func(v any) { _ = binary.Write(&b, le, v) }
	const ehsize, phsize, shsize = 64, 56, 64
	off := uint64(ehsize + phsize*len(segs))
	offs := make([]uint64, len(segs))
	for i, s := range segs {
		offs[i] = off
		off += uint64(len(s.data))
	}
	// String table, symbol table, section headers: null, .text, .symtab, .strtab.
	strtab := []byte{0}
	symtab := make([]byte, 24)
	name := func(s string) uint32 {
		n := len(strtab)
		strtab = append(append(strtab, s...), 0)
		return uint32(n)
	}
	for _, s := range syms {
		e := make([]byte, 24)
		le.PutUint32(e, name(s.name))
		e[4] = byte(elf.STB_GLOBAL)<<4 | byte(elf.STT_FUNC)
		le.PutUint16(e[6:], uint16(elf.SHN_ABS))
		le.PutUint64(e[8:], s.addr)
		le.PutUint64(e[16:], s.size)
		symtab = append(symtab, e...)
	}
	nSym, nStr := name(".symtab"), name(".strtab")
	symOff := off
	strOff := symOff + uint64(len(symtab))
	shOff := strOff + uint64(len(strtab))

	put([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	put(uint16(elf.ET_EXEC))
	put(uint16(elf.EM_X86_64))
	put(uint32(1))
	put(uint64(tinyText))
	put(uint64(ehsize))
	put(shOff)
	put(uint32(0))
	put([]uint16{ehsize, phsize, uint16(len(segs)), shsize, 3, 2})
	for i, s := range segs {
		put([]uint32{uint32(elf.PT_LOAD), uint32(s.flags)})
		put([]uint64{offs[i], s.vaddr, s.paddr, uint64(len(s.data)), uint64(len(s.data)), 1})
	}
	for _, s := range segs {
		b.Write(s.data)
	}
	b.Write(symtab)
	b.Write(strtab)
	section := func(name uint32, typ elf.SectionType, off, size uint64, link, info uint32, entsize uint64) {
		put([]uint32{name, uint32(typ)})
		put([]uint64{0, 0, off, size})
		put([]uint32{link, info})
		put([]uint64{1, entsize})
	}
	section(0, elf.SHT_NULL, 0, 0, 0, 0, 0)
	section(nSym, elf.SHT_SYMTAB, symOff, uint64(len(symtab)), 2, 1, 24)
	section(nStr, elf.SHT_STRTAB, strOff, uint64(len(strtab)), 0, 0, 0)
	img, err := guest.ParseELF(b.Bytes())
	if err != nil {
		t.Fatalf("tiny guest: %v", err)
	}
	return img
}

// asm joins pieces of code.
func asm(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = append(b, byte(p))
		case []byte:
			b = append(b, p...)
		case string:
			b = append(b, p...)
		}
	}
	return b
}

// The instructions that the test guests are made of. They spin with a pause,
// which brings them out to KVM now and then: Bochs does not take the interrupts
// of its own machine in a guest that was entered with IF clear, so one that only
// jumps would never come back there.
var (
	hltForever = []byte{0xfa, 0xf4, 0xeb, 0xfd} // cli; 1: hlt; jmp 1b
	spin       = []byte{0xf3, 0x90, 0xeb, 0xfc} // 1: pause; jmp 1b
)

// exitCode is mov $code, %eax; out %eax, $0xf4.
func exitCode(code uint32) []byte {
	return append(binary.LittleEndian.AppendUint32([]byte{0xb8}, code), 0xe7, guest.PortExit)
}

// say is mov $c, %al; out %al, $0xe9 for each byte.
func say(s string) []byte {
	var b []byte
	for i := range len(s) {
		b = append(b, 0xb0, s[i], 0xe6, guest.PortConsole)
	}
	return b
}

// slowTick is the period of guests with probes in all of their timer handler: one
// that is not done when the next tick comes leaves the guest no time for anything else.
const slowTick = 100 * time.Millisecond

// breathe is for loops that wait for what a guest does: its vCPU may be waiting
// for the processor that they run on.
func breathe() { time.Sleep(20 * time.Microsecond) }

// newMachine makes a machine that the test closes.
func newMachine(t testing.TB, cfg Config) *Machine {
	t.Helper()
	kvmtest.Require(t)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeMachine(t, m) })
	return m
}

func closeMachine(t testing.TB, m *Machine) {
	t.Helper()
	if err := m.Close(context.Background()); err != nil {
		t.Errorf("close: %v", err)
	}
}

// testWriter logs to the test.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimRight(p, "\n"))
	return len(p), nil
}

// waitEnd waits until the guest has ended.
func waitEnd(t testing.TB, m *Machine) State {
	t.Helper()
	s, err := m.Wait(patience.Context(t))
	if err != nil {
		t.Fatalf("guest did not end: %v, state %+v, console %q", err, s, texts(m.Console().tail(20)))
	}
	// Another vCPU may still be in its last hit, which counts are to have.
	if err := m.Stop(func(probe.World) error { return nil }); err != nil && s.Phase != PhaseClosed {
		t.Errorf("stop after the end: %v", err)
	}
	return s
}

// run resumes the machine and waits until the guest has ended.
func run(t testing.TB, m *Machine) State {
	t.Helper()
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	return waitEnd(t, m)
}

// awaitBusy waits until no vCPU rests.
func awaitBusy(m *Machine) {
	for {
		busy := true
		for _, v := range m.State().VCPUs {
			busy = busy && v.Activity == VCPURunning
		}
		if busy {
			return
		}
		breathe()
	}
}
