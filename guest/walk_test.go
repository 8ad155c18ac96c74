package guest

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// TestWalk: the entries that a walk goes through, with their flags, and at the end what
// Translate says.
func TestWalk(t *testing.T) {
	p := sampleTables(t)
	p.set(4, 7, 5<<12|tabPW|ptePWT|ptePCD|pteAccessed|pteDirty|pteGlobal|ptePS|pteNX)
	as := NewAddressSpace(p.mem, 1<<12)
	for va, want := range map[GVA]string{
		0x4000:            "PML4E 0 0x1000 0x2000 P RW US|PDPTE 0 0x2000 0x3000 P RW US|PDE 0 0x3000 0x4000 P RW US|PTE 4 0x4020 0x8000 P RW US",
		0x7000:            "PML4E 0 0x1000 0x2000 P RW US|PDPTE 0 0x2000 0x3000 P RW US|PDE 0 0x3000 0x4000 P RW US|PTE 7 0x4038 0x5000 P RW PWT PCD A D G PAT XD",
		0x2000:            "PML4E 0 0x1000 0x2000 P RW US|PDPTE 0 0x2000 0x3000 P RW US|PDE 0 0x3000 0x4000 P RW US|PTE 2 0x4010 0x0 ",
		0x600010:          "PML4E 0 0x1000 0x2000 P RW US|PDPTE 0 0x2000 0x3000 P RW US|PDE 3 0x3018 0x0 P RW PS PAT",
		0x40000000:        "PML4E 0 0x1000 0x2000 P RW US|PDPTE 1 0x2008 0x0 P RW US PS",
		0x800000:          "PML4E 0 0x1000 0x2000 P RW US|PDPTE 0 0x2000 0x3000 P RW US|PDE 4 0x3020 0x63000 P RW",
		3 << 39:           "PML4E 3 0x1018 0x0 ",
		1 << 47:           "",
		2<<39 | 2<<30 | 5: "PML4E 2 0x1010 0x1000 P RW|PDPTE 2 0x1010 0x1000 P RW|PDE 0 0x1000 0x2000 P RW US|PTE 0 0x2000 0x3000 P RW US",
	} {
		steps, m, err := as.Walk(va)
		var got []string
		for _, s := range steps {
			got = append(got, s.Name()+" "+fmt.Sprintf("%d %#x %#x ", s.Index(), uint64(s.At), uint64(s.Points()))+strings.Join(s.Flags(), " "))
		}
		if g := strings.Join(got, "|"); g != want {
			t.Errorf("%v:\ngot  %s\nwant %s", va, g, want)
		}
		if wm, werr := as.Translate(va); m != wm || !reflect.DeepEqual(err, werr) {
			t.Errorf("%v: %+v, %v, want as Translate %+v, %v", va, m, err, wm, werr)
		}
	}
	// Five levels: the root of the others is the second entry of the first table.
	p.set(30, 1, 1<<12|tabPWU)
	deep := NewAddressSpace(p.mem, 30<<12).Levels5()
	steps, m, err := deep.Walk(1<<48 | 0x4000)
	if err != nil || len(steps) != 5 || steps[0].Name() != "PML5E" || steps[0].Index() != 1 || m.PA != 0x8000 || deep.Levels() != 5 {
		t.Errorf("%+v, %+v, %v", steps, m, err)
	}
	if _, _, err := deep.Walk(2 << 48); !errors.As(err, new(*PageFaultError)) || err.(*PageFaultError).Level != 5 {
		t.Error(err)
	}
}

// TestKey: the protection key is that of the entry that maps the page, of any size.
func TestKey(t *testing.T) {
	p := sampleTables(t)
	p.set(4, 7, 8<<12|tabPWU|5<<pteKeyShift)
	p.set(3, 7, tabPWU|ptePS|1<<pteKeyShift|pteNX)
	p.set(4, 8, 15<<pteKeyShift)
	as := NewAddressSpace(p.mem, 1<<12)
	for va, want := range map[GVA]uint8{0x7008: 5, 0x4000: 0, 7<<21 | 0x1234: 1, 0x8000: 0, 1 << 47: 0} {
		var got uint8
		if n := testing.AllocsPerRun(10, func() { got = as.Key(va) }); got != want || n != 0 {
			t.Errorf("%v: key %d, %v allocations; want key %d", va, got, n, want)
		}
	}
}
