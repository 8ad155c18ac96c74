package guest

import (
	"errors"
	"testing"
)

// TestTableBuilder maps ranges one over the other and compares with a map.
func TestTableBuilder(t *testing.T) {
	mem := &Memory{}
	host := make([]byte, 64*PageSize)
	const base = 0x40000000
	if err := mem.Add(base, host, "tables"); err != nil {
		t.Fatal(err)
	}
	b, err := newTableBuilder(base, host)
	if err != nil {
		t.Fatal(err)
	}
	want := map[GVA]Mapping{}
	put := func(va GVA, pa GPA, size, flags uint64, large bool) {
		t.Helper()
		if err := b.mapRange(va, pa, size, flags, large); err != nil {
			t.Fatal(err)
		}
		for off := uint64(0); off < size; off += PageSize {
			m := Mapping{pa + GPA(off), 0, flags&pteWrite != 0, flags&pteUser != 0, flags&pteNX != 0}
			want[va+GVA(off)] = m
		}
	}
	put(0, 0, 6<<20+3*PageSize, pteWrite, true)
	put(0x1ff000, 0x700000, 2*PageSize, pteUser, false)            // the last page of one large page and the first of the next
	put(0xffffffff80000000, 0x100000, 5<<20, pteNX|pteWrite, true) // 2 MiB aligned, but not alike
	put(0xffffffff80001000, 0x101000, PageSize, 0, false)          // over one of them
	put(1<<40, 4<<30, 4<<20, pteUser|pteWrite, true)               // above 4 GiB
	put(1<<47-2*PageSize, 0x3000, 2*PageSize, 0, false)            // end of the lower half
	put(0x400000, 0x200000, 2<<20, pteNX, true)                    // a large page over another
	if err := b.unmapPage(0x401000); err != nil {
		t.Fatal(err)
	}
	delete(want, 0x401000)

	as := NewAddressSpace(mem, base)
	for va, w := range want {
		got, err := as.Translate(va)
		got.Size = 0
		if err != nil || got != w {
			t.Errorf("%v: %+v, %v; want %+v", va, got, err, w)
		}
	}
	for va, reason := range map[GVA]FaultReason{
		0x401000: FaultNotPresent, 6<<20 + 3*PageSize: FaultNotPresent, 0xffffffff80500000: FaultNotPresent, 0xffffffff7ffff000: FaultNotPresent,
		1<<40 - 1: FaultNotPresent, 1<<40 + 4<<20: FaultNotPresent, 1<<47 - 3*PageSize: FaultNotPresent,
	} {
		_, err := as.Translate(va)
		var pf *PageFaultError
		if !errors.As(err, &pf) || pf.Reason != reason {
			t.Errorf("%v: %v, want %v", va, err, reason)
		}
	}
	if m, _ := as.Translate(2<<20 + 0x2000); m.Size != page4K {
		t.Errorf("large page was not cut up: %+v", m)
	}
	if m, _ := as.Translate(1 << 40); m.Size != page2M {
		t.Errorf("no large page: %+v", m)
	}
}

func TestTableBuilderRunsOut(t *testing.T) {
	host := make([]byte, 4*PageSize)
	if _, err := newTableBuilder(0, host[:PageSize-1]); !errors.Is(err, errTableSpace) {
		t.Error(err)
	}
	b, err := newTableBuilder(0, host)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.mapRange(0, 0, 512*PageSize, 0, false); err != nil {
		t.Error(err)
	}
	err = b.mapRange(512*PageSize, 0, PageSize, 0, false)
	if errText(err) != "map 0x0000000000200000: page tables do not fit the loader's memory: use less RAM or smaller segments" {
		t.Error(err)
	}
}
