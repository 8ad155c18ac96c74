package event

import (
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
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
		copy(b, x86.Endbr64)
	}
	return b
}

func (s fakeSymbols) BlacklistReason(guest.GVA) string { return "" }

// readDef is what a user typically writes: a number, a pointer, a string.
const readDef = "p:myread vfs_read fd=%di:s32 buf=%si name=+0(%r8):string"

func compile(t testing.TB, text string, opt Options) *Layout {
	t.Helper()
	d, err := ParseIn(text, Scope{Symbols: kernel})
	if err != nil {
		t.Fatal(err)
	}
	f, err := Compile(d, Scope{Symbols: kernel}, opt)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
