package guest

import (
	"encoding/binary"
	"errors"
	"testing"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// pokeTable is physical memory with page tables written by hand.
type pokeTable struct {
	mem  *Memory
	host []byte
}

// newPoke returns pages pages of zero memory at 0.
func newPoke(t testing.TB, pages int) pokeTable {
	t.Helper()
	p := pokeTable{&Memory{}, make([]byte, pages*PageSize)}
	if err := p.mem.Add(0, p.host, "ram"); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p pokeTable) set(table, index int, entry uint64) {
	binary.LittleEndian.PutUint64(p.host[table*PageSize+index*8:], entry)
}

// The tables of the tests: PML4 in page 1, PDPT in 2, PD in 3, PT in 4.
const (
	tabP   = ptePresent
	tabPW  = ptePresent | pteWrite
	tabPWU = ptePresent | pteWrite | pteUser
)

// sampleTables maps, with PML4[0] and PML4[511] alike:
//
//	PT[0] page 5, PT[1] page 6, PT[3] read-only page 7, PT[4] user page 8,
//	PT[5] no-execute page 9, PT[6] a page outside memory; PD[1] 2 MiB at 0;
//	PDPT[1] 1 GiB at 0.
func sampleTables(t testing.TB) pokeTable {
	p := newPoke(t, 32)
	p.set(1, 0, 2<<12|tabPWU)
	p.set(1, 511, 2<<12|tabPWU)
	p.set(2, 0, 3<<12|tabPWU)
	p.set(2, 511, 3<<12|tabPWU)
	p.set(3, 0, 4<<12|tabPWU)
	p.set(3, 511, 4<<12|tabPWU)
	p.set(4, 0, 5<<12|tabPW)
	p.set(4, 1, 6<<12|tabPW)
	p.set(4, 3, 7<<12|tabP)
	p.set(4, 4, 8<<12|tabPWU)
	p.set(4, 5, 9<<12|tabPW|pteNX)
	p.set(4, 6, 1<<40|tabPW)
	p.set(4, 511, 5<<12|tabPW)
	p.set(3, 1, tabPW|ptePS)
	p.set(2, 1, tabPWU|ptePS)
	p.set(2, 2, 1<<13|tabPW|ptePS)  // reserved: 1 GiB page not 1 GiB aligned
	p.set(2, 3, 1<<12|tabPW|ptePS)  // PAT bit of a 1 GiB page
	p.set(3, 2, 1<<13|tabPW|ptePS)  // reserved: 2 MiB page not 2 MiB aligned
	p.set(3, 3, 1<<12|tabPW|ptePS)  // PAT bit of a 2 MiB page
	p.set(3, 4, 99<<12|tabPW)       // table outside memory
	p.set(3, 5, 4<<12|tabP)         // read-only table of writable pages
	p.set(3, 6, 4<<12|tabPWU|pteNX) // no-execute table
	p.set(1, 1, tabPW|ptePS)        // reserved in a PML4E
	p.set(1, 2, 1<<12|tabPW)        // the root again
	return p
}

func TestTranslate(t *testing.T) {
	p := sampleTables(t)
	as := NewAddressSpace(p.mem, 1<<12|0xfff) // PCID bits are not part of the root
	const top = 0xffffff8000000000            // PML4[511]
	tests := []struct {
		name string
		va   GVA
		want Mapping
		err  PageFaultError
	}{
		{"first byte", 0, Mapping{0x5000, 4096, true, false, false}, PageFaultError{}},
		{"last byte of a page", 0xfff, Mapping{0x5fff, 4096, true, false, false}, PageFaultError{}},
		{"next page", 0x1000, Mapping{0x6000, 4096, true, false, false}, PageFaultError{}},
		{"hole", 0x2000, Mapping{}, PageFaultError{0, 1, FaultNotPresent}},
		{"read-only", 0x3123, Mapping{0x7123, 4096, false, false, false}, PageFaultError{}},
		{"user", 0x4000, Mapping{0x8000, 4096, true, true, false}, PageFaultError{}},
		{"no execute", 0x5000, Mapping{0x9000, 4096, true, false, true}, PageFaultError{}},
		{"page outside memory", 0x6001, Mapping{1<<40 | 1, 4096, true, false, false}, PageFaultError{}},
		{"last page of a table", 0x1ff123, Mapping{0x5123, 4096, true, false, false}, PageFaultError{}},
		{"2 MiB", 0x200000, Mapping{0, page2M, true, false, false}, PageFaultError{}},
		{"2 MiB, end", 0x3fffff, Mapping{0x1fffff, page2M, true, false, false}, PageFaultError{}},
		{"2 MiB, reserved bit", 0x400000, Mapping{}, PageFaultError{0, 2, FaultReserved}},
		{"2 MiB, PAT", 0x600010, Mapping{0x10, page2M, true, false, false}, PageFaultError{}},
		{"table outside memory", 0x800000, Mapping{}, PageFaultError{0, 1, FaultNoMemory}},
		{"read-only table", 0xa00000, Mapping{0x5000, 4096, false, false, false}, PageFaultError{}},
		{"no-execute table", 0xc04000, Mapping{0x8000, 4096, true, true, true}, PageFaultError{}},
		{"hole at level 2", 0xe00000, Mapping{}, PageFaultError{0, 2, FaultNotPresent}},
		{"1 GiB", 0x40000000, Mapping{0, page1G, true, true, false}, PageFaultError{}},
		{"1 GiB, end", 0x7fffffff, Mapping{0x3fffffff, page1G, true, true, false}, PageFaultError{}},
		{"1 GiB, reserved bit", 0x80000000, Mapping{}, PageFaultError{0, 3, FaultReserved}},
		{"1 GiB, PAT", 0xc0000007, Mapping{7, page1G, true, false, false}, PageFaultError{}},
		{"hole at level 3", 0x100000000, Mapping{}, PageFaultError{0, 3, FaultNotPresent}},
		{"PS in a PML4E", 1 << 39, Mapping{}, PageFaultError{0, 4, FaultReserved}},
		{"hole at level 4", 3 << 39, Mapping{}, PageFaultError{0, 4, FaultNotPresent}},
		{"last lower address", 1<<47 - 1, Mapping{}, PageFaultError{0, 4, FaultNotPresent}},
		{"first non-canonical", 1 << 47, Mapping{}, PageFaultError{0, 0, FaultNonCanonical}},
		{"last non-canonical", 0xffff7fffffffffff, Mapping{}, PageFaultError{0, 0, FaultNonCanonical}},
		{"first higher address", 0xffff800000000000, Mapping{}, PageFaultError{0, 4, FaultNotPresent}},
		{"higher half", top + 0x1234, Mapping{0x6234, 4096, true, false, false}, PageFaultError{}},
		{"last byte of all", 0xffffffffffffffff, Mapping{0x5fff, 4096, true, false, false}, PageFaultError{}},
		// The root as its own PDPT, PD and PT: an ordinary table at each level.
		{"cyclic", 2<<39 | 2<<30 | 2<<21 | 2<<12 | 5, Mapping{0x1005, 4096, true, false, false}, PageFaultError{}},
		{"cyclic, hole", 2<<39 | 2<<30 | 2<<21 | 3<<12, Mapping{}, PageFaultError{0, 1, FaultNotPresent}},
	}
	for _, tt := range tests {
		maps := false
		if n := testing.AllocsPerRun(10, func() { maps = as.Maps(tt.va) }); maps != (tt.err.Reason == 0) || n != 0 {
			t.Errorf("%s: %v is mapped: %v, with %v allocations", tt.name, tt.va, maps, n)
		}
		got, err := as.Translate(tt.va)
		if tt.err.Reason == 0 {
			if err != nil || got != tt.want {
				t.Errorf("%s: %v = %+v, %v; want %+v", tt.name, tt.va, got, err, tt.want)
			}
			continue
		}
		tt.err.VA = tt.va
		var pf *PageFaultError
		if !errors.As(err, &pf) || *pf != tt.err {
			t.Errorf("%s: %v = %+v, %v; want %v", tt.name, tt.va, got, err, &tt.err)
		}
	}
}

func TestPageFaultErrorText(t *testing.T) {
	for want, e := range map[string]PageFaultError{
		"guest address 0x0000000000001000: not mapped (page-table level 2)":                               {0x1000, 2, FaultNotPresent},
		"guest address 0x0001000000000000: not a canonical address":                                       {1 << 48, 0, FaultNonCanonical},
		"guest address 0x0000000000000000: page-table entry with a reserved bit set (page-table level 4)": {0, 4, FaultReserved},
		"guest address 0x0000000000000000: mapped outside guest memory":                                   {0, 0, FaultNoMemory},
		"guest address 0x0000000000000000: read-only page (page-table level 1)":                           {0, 1, FaultNotWritable},
		"guest address 0x0000000000000000: supervisor page (page-table level 3)":                          {0, 3, FaultNotUser},
		"guest address 0x0000000000000000: fault reason 99":                                               {0, 0, 99},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if r := NewAddressSpace(&Memory{}, 0x8000000000005fff).Root(); r != 0x5000 {
		t.Errorf("root %v", r)
	}
}

func TestTranslateRootOutsideMemory(t *testing.T) {
	p := newPoke(t, 1)
	_, err := NewAddressSpace(p.mem, 0x1000).Translate(0)
	var pf *PageFaultError
	if !errors.As(err, &pf) || *pf != (PageFaultError{0, 4, FaultNoMemory}) {
		t.Errorf("got %v", err)
	}
	if want := "guest address 0x0000000000000000: mapped outside guest memory (page-table level 4)"; err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

// naiveTranslate is a second walk, written down from the manual's tables by
// field and level, for comparison.
func naiveTranslate(host []byte, root, va uint64) (Mapping, bool) {
	if hi := va >> 47; hi != 0 && hi != 1<<17-1 {
		return Mapping{}, false
	}
	index := [4]uint64{va >> 39 % 512, va >> 30 % 512, va >> 21 % 512, va >> 12 % 512}
	m := Mapping{Writable: true, User: true}
	table := root
	for depth, size := range []uint64{0, page1G, page2M, page4K} {
		at := table + 8*index[depth]
		if at >= uint64(len(host)) {
			return Mapping{}, false
		}
		e := uint64(0)
		for i := range uint64(8) {
			e += uint64(host[at+i]) << (8 * i)
		}
		bit := func(n uint) bool { return e>>n%2 == 1 }
		if !bit(0) {
			return Mapping{}, false
		}
		m.Writable = m.Writable && bit(1)
		m.User = m.User && bit(2)
		m.NoExec = m.NoExec || bit(63)
		addr := e % (1 << 52) / 4096 * 4096
		if depth == 3 || bit(7) {
			if size == 0 {
				return Mapping{}, false
			}
			if size != page4K {
				if addr/8192%(size/8192) != 0 { // bits 13 up to the page size
					return Mapping{}, false
				}
				addr = addr / size * size
			}
			m.PA, m.Size = GPA(addr+va%size), size
			return m, true
		}
		table = addr
	}
	return Mapping{}, false
}

func FuzzTranslate(f *testing.F) {
	f.Add([]byte{}, uint64(0), uint64(0))
	f.Add([]byte{0, 0, 0x07, 0, 0, 0, 0, 0, 0, 0}, uint64(0), uint64(0x123)) // root[0] points to the root
	f.Add([]byte{0, 0, 0x87, 0, 0, 0, 0, 0, 0, 0}, uint64(0), uint64(0))
	f.Add([]byte{0, 8, 0x03, 0x10, 0, 0, 0, 0, 0, 0x80, 2, 0, 0x81, 0x20, 0, 0, 0, 0, 0, 0}, uint64(0x1000), uint64(1<<39))
	f.Fuzz(func(t *testing.T, edits []byte, root, va uint64) {
		p := newPoke(t, 4)
		// Each edit: an offset in units of 8 bytes, then the entry.
		for ; len(edits) >= 10; edits = edits[10:] {
			off := int(binary.LittleEndian.Uint16(edits)) % (len(p.host) / 8) * 8
			copy(p.host[off:], edits[2:10])
		}
		root &= pteAddr
		want, ok := naiveTranslate(p.host, root, va)
		got, err := NewAddressSpace(p.mem, GPA(root)).Translate(GVA(va))
		if (err == nil) != ok || got != want {
			t.Errorf("root %#x va %#x: got %+v, %v; want %+v, %v", root, va, got, err, want, ok)
		}
	})
}

// TestLevels5: a table of level 5 on top gives the same translations, at addresses of
// 57 bits; and memory with a Home is mapped without tables.
func TestLevels5(t *testing.T) {
	p := sampleTables(t)
	p.set(10, 3, 1<<12|tabPWU)
	p.set(10, 511, 1<<12|tabPWU)
	p.set(10, 4, 1<<12|tabPWU|ptePS)
	four, five := NewAddressSpace(p.mem, 1<<12), NewAddressSpace(p.mem, 10<<12).Levels5()
	for _, low := range []GVA{0, 0x1008, 0x3000, 0x200123, 0x40000000} {
		want, err := four.Translate(low)
		for _, va := range []GVA{3<<48 | low, 0xffff<<48 | low} {
			if got, gerr := five.Translate(va); got != want || (err == nil) != (gerr == nil) {
				t.Errorf("%v: %+v %v, with 4 levels at %v %+v %v", va, got, gerr, low, want, err)
			}
		}
	}
	for va, want := range map[GVA]PageFaultError{
		4 << 48: {Level: 5, Reason: FaultReserved}, 5 << 48: {Level: 5, Reason: FaultNotPresent}, 1 << 57: {Reason: FaultNonCanonical},
	} {
		var e *PageFaultError
		if _, err := five.Translate(va); !errors.As(err, &e) || e.Level != want.Level || e.Reason != want.Reason {
			t.Errorf("%v: %v, want %v", va, err, want)
		}
	}
	home := four.WithHome(Home{Start: 1 << 45, Size: 2 * PageSize, PA: 6 << 12})
	if m, err := home.Translate(1<<45 + PageSize + 8); err != nil || m.PA != 7<<12+8 {
		t.Errorf("at home: %+v %v", m, err)
	}
	if _, err := home.Translate(1<<45 + 2*PageSize); err == nil {
		t.Error("behind home: mapped")
	}
}
