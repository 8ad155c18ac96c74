package event

import (
	"fmt"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// fakeSymbols is an image in plain Go.
type fakeSymbols []guest.Symbol

const (
	addrRead   guest.GVA = 0xffffffff81001000
	addrClone  guest.GVA = 0xffffffff81002000
	addrEndbr  guest.GVA = 0xffffffff81003000
	addrSdata  guest.GVA = 0xffffffff82000000
	addrBanner guest.GVA = 0xffffffff82000100
)

var kernel = fakeSymbols{
	{Name: "vfs_read", Addr: addrRead, Size: 0x370, Kind: guest.SymFunc},
	{Name: "kfree", Addr: addrRead + 0x400, Size: 0x80, Kind: guest.SymFunc},
	{Name: "ksys_read", Addr: addrRead + 0x500, Size: 0xf0, Kind: guest.SymFunc},
	{Name: "get_kprobe", Addr: addrRead + 0x600, Size: 0x40, Kind: guest.SymFunc},
	{Name: "do_int3", Addr: addrRead + 0x640, Size: 0x40, Kind: guest.SymFunc},
	{Name: "__pfx_vfs_read", Addr: addrRead + 0x680, Size: 0x10, Kind: guest.SymFunc},
	{Name: "__switch_to", Addr: addrRead + 0x700, Size: 0x40, Kind: guest.SymFunc},
	{Name: "ftrace_stub", Addr: addrRead + 0x740, Size: 0x10, Kind: guest.SymFunc},
	{Name: "do_exit", Addr: addrRead + 0x800, Size: 0x40, Kind: guest.SymFunc},
	{Name: "kernel_clone", Addr: addrClone, Size: 0x300, Kind: guest.SymFunc},
	{Name: "do_fork", Addr: addrClone + 0x400, Size: 0x100, Kind: guest.SymFunc},
	{Name: "do_sys_openat2", Addr: addrClone + 0x500, Size: 0x170, Kind: guest.SymFunc},
	{Name: "with_endbr", Addr: addrEndbr, Size: 0x40, Kind: guest.SymFunc},
	{Name: "huge", Addr: addrEndbr + 0x100, Size: 0x20000, Kind: guest.SymFunc},
	{Name: "_sdata", Addr: addrSdata, Size: 0x100, Kind: guest.SymData},
	{Name: "linux_proc_banner", Addr: addrBanner, Size: 0x40, Kind: guest.SymData},
	{Name: "jiffies", Addr: addrBanner + 0x40, Size: 8, Kind: guest.SymData},
}

func (s fakeSymbols) Lookup(name string) (guest.Symbol, error) {
	if name == "name_show" {
		return guest.Symbol{}, &guest.AmbiguousSymbolError{Name: name, Addrs: []guest.GVA{1, 2}}
	}
	for _, y := range s {
		if y.Name == name {
			return y, nil
		}
	}
	return guest.Symbol{}, guest.ErrSymbolNotFound
}

func (s fakeSymbols) Find(addr guest.GVA) (guest.Symbol, bool) {
	for _, y := range s {
		if addr >= y.Addr && uint64(addr-y.Addr) < y.Size {
			return y, true
		}
	}
	return guest.Symbol{}, false
}

func (s fakeSymbols) IsText(addr guest.GVA) bool { return addr >= addrRead && addr < addrSdata }

func (s fakeSymbols) Code(addr guest.GVA, n int) []byte {
	b := slices.Repeat([]byte{0x90}, n)
	if y, _ := s.Find(addr); y.Name == "with_endbr" && addr == y.Addr {
		copy(b, insn.Endbr64)
	}
	return b
}

func (s fakeSymbols) Blacklisted(guest.GVA) string { return "" }

// fakeTarget is a guest whose memory is a set of pages.
type fakeTarget struct {
	cpus  int
	pages map[guest.GVA]*[pageSize]byte
	next  guest.GVA
}

func newTarget(cpus int) *fakeTarget {
	t := &fakeTarget{cpus: cpus, pages: map[guest.GVA]*[pageSize]byte{}, next: addrRead - 0x100000}
	t.pages[addrRead&^(pageSize-1)] = (*[pageSize]byte)(slices.Repeat([]byte{0x90}, pageSize))
	return t
}

type badAddress guest.GVA

func (b badAddress) Error() string { return fmt.Sprintf("bad address %v", guest.GVA(b)) }

// errBad is made once, as 0 allocations are asked for faults too.
var errBad error = badAddress(0)

func (t *fakeTarget) access(addr guest.GVA, p []byte, write bool) error {
	for len(p) > 0 {
		page := t.pages[addr&^(pageSize-1)]
		if page == nil {
			return errBad
		}
		at := page[addr%pageSize:]
		n := 0
		if write {
			n = copy(at, p)
		} else {
			n = copy(p, at)
		}
		p, addr = p[n:], addr+guest.GVA(n)
	}
	return nil
}

// set writes p at addr, mapping what is not there.
func (t *fakeTarget) set(addr guest.GVA, p []byte) {
	for a := addr &^ (pageSize - 1); a < addr+guest.GVA(len(p)); a += pageSize {
		if t.pages[a] == nil {
			t.pages[a] = new([pageSize]byte)
		}
	}
	if err := t.access(addr, p, true); err != nil {
		panic(err)
	}
}

func (t *fakeTarget) NumCPU() int { return t.cpus }

func (t *fakeTarget) Capabilities(bool) probe.Capabilities { return probe.Capabilities{} }

func (t *fakeTarget) ReadMemory(_ guest.GPA, addr guest.GVA, p []byte) error {
	return t.access(addr, p, false)
}

func (t *fakeTarget) WriteMemory(_ guest.GPA, addr guest.GVA, p []byte) error {
	return t.access(addr, p, true)
}

func (t *fakeTarget) Stop(f func(probe.World) error) error { return f(fakeWorld{t}) }

func (t *fakeTarget) AllocExec(_ guest.GVA, size int) (guest.GVA, error) {
	addr := t.next
	t.set(addr, make([]byte, size))
	t.next += guest.GVA(size)
	return addr, nil
}

func (t *fakeTarget) WriteExec(addr guest.GVA, p []byte) error { return t.access(addr, p, true) }
func (t *fakeTarget) Symbols() probe.Symbols                   { return kernel }

type fakeWorld struct{ t *fakeTarget }

func (w fakeWorld) PatchText(addr guest.GVA, _, new []byte) error { return w.t.access(addr, new, true) }
func (w fakeWorld) CPU(int) probe.State                           { return probe.State{Regs: new(probe.Regs)} }

// machine is an engine over a fakeTarget with one probe on vfs_read.
type machine struct {
	*fakeTarget
	engine *probe.Engine
	probe  *probe.Kprobe
}

func newMachine(t testing.TB, cpus int) *machine {
	t.Helper()
	m := &machine{fakeTarget: newTarget(cpus), probe: &probe.Kprobe{Symbol: "vfs_read"}}
	var err error
	if m.engine, err = probe.New(m.fakeTarget, probe.Options{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// handle sets the handler that hits run.
func (m *machine) handle(t testing.TB, f func(*probe.Context)) {
	t.Helper()
	m.probe.Pre = func(c *probe.Context) int {
		// The engine contains the panics of handlers.
		defer func() {
			if r := recover(); r != nil {
				t.Errorf("handler: %v\n%s", r, debug.Stack())
			}
		}()
		f(c)
		return 0
	}
	if err := m.engine.Register(m.probe); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.engine.Close(); err != nil {
			t.Error(err)
		}
	})
}

// hit makes one hit on a vCPU and runs the handler.
func (m *machine) hit(cpu int, regs *probe.Regs) {
	regs.RIP = uint64(addrRead)
	m.engine.Hit(cpu, probe.State{Regs: regs}, probe.Trap{Kind: probe.TrapBreakpoint})
}
