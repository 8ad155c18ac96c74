package machine

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
)

// TestEngineMemory: pages of the engine's are mapped behind the kernel's image and in the
// hole below its mapping, by tables that nobody else has; what is the guest's stays.
func TestEngineMemory(t *testing.T) {
	mem := new(guest.Memory)
	ram := make([]byte, 1<<20)
	if err := mem.Add(0, ram, "ram"); err != nil {
		t.Fatal(err)
	}
	// level 4 at 0x1000, 3 at 0x2000, 2 at 0x3000; the image at home.
	put := func(at guest.GPA, index, v uint64) { binary.LittleEndian.PutUint64(ram[uint64(at)+8*index:], v) }
	home := guest.Home{Start: linux.KernelMap + 16<<20, PA: 16 << 20, Size: 4<<20 + 0x3000}
	put(0x1000, 511, 0x2000|ptePresent|pteWrite)
	put(0x2000, 510, 0x3000|ptePresent|pteWrite)
	put(0x2000, 508, 0x4000|ptePresent|pteWrite) // somebody else's
	for i := range uint64(2) {
		put(0x3000, 8+i, (16<<20+i*page2M)|ptePresent|ptePS)
	}
	e := &engineMemory{}
	ranges := e.appendRanges([]guest.MemoryRange{{Name: "ram", Size: 1 << 20}})
	for _, r := range ranges[1:] {
		if err := mem.Add(r.Base, make([]byte, r.Size), r.Name); err != nil {
			t.Fatal(err)
		}
	}
	b := &guest.BootState{}
	e.reset(mem, home, guest.MemoryRange{Base: 0x80000, Size: 0x80000}, b) // in RAM, where the kernel can read them
	as := guest.NewAddressSpace(mem, 0x1000)
	const inHole = guest.GVA(linux.KernelMap - 0x2000_0000)
	if err := e.Map(inHole, e.far.Base, false); !errors.Is(err, errNotMapped) {
		t.Errorf("before it is attached: %v", err)
	}
	if err := e.attach(as); err != nil {
		t.Fatal(err)
	}
	if e.home.Size != 4<<20 {
		t.Errorf("%#x bytes of the image are still mapped", e.home.Size)
	}
	for at, want := range map[guest.GVA]guest.Mapping{
		e.execAt: {PA: e.exec.Base, Size: page2M},
		e.dataAt: {PA: e.data.Base, Size: page2M, Writable: true, NoExec: true},
	} {
		if m, err := as.Translate(at); err != nil || m != want {
			t.Errorf("%v: %+v, %v, want %+v", at, m, err, want)
		}
	}
	for i, tc := range []struct {
		at   guest.GVA
		fits bool
	}{
		{inHole, true},
		{inHole + guest.PageSize, true},
		{inHole, false}, // taken
		{e.dataAt + guest.DataSize + page2M, true},
		{linux.KernelMap, true}, // before the image
		{home.Start, false},
		{home.Start + 4<<20, true}, // what the kernel has cleared behind what it uses
		{e.execAt, false},
		{linux.KernelMap - 2<<30, false},          // another's table
		{linux.KernelMap - 2<<30 - 0x1000, false}, // below the hole
		{linux.KernelMap + 1<<30, false},          // the modules'
	} {
		pa := e.far.Base + guest.GPA(i)*guest.PageSize
		err := e.Map(tc.at, pa, false)
		if (err == nil) != tc.fits {
			t.Errorf("%v: %v, want success: %v", tc.at, err, tc.fits)
		}
		if !tc.fits {
			continue
		}
		if m, err := as.WithHome(e.home).Translate(tc.at); err != nil || m.PA != pa || m.Writable || m.User || m.NoExec {
			t.Errorf("%v: %+v, %v, want %v", tc.at, m, err, pa)
		}
	}
}
