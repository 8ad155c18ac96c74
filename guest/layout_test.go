package guest

import (
	"strings"
	"testing"
)

func TestLayoutFor(t *testing.T) {
	for _, tt := range []struct {
		ram    uint64
		loader GPA
	}{
		{PageSize, page1G}, {16 << 20, page1G}, {page1G, page1G}, {page1G + PageSize, 2 * page1G}, {MaxRAM, MaxRAM},
	} {
		l, err := LayoutFor(tt.ram)
		want := Layout{
			RAM:        MemoryRange{"ram", 0, tt.ram, RangeRAM},
			Loader:     MemoryRange{"loader", tt.loader, 16 << 20, RangeRAM},
			KernelExec: MemoryRange{"kernel exec", tt.loader + 16<<20, 8 << 20, RangeExec},
			UserExec:   MemoryRange{"user exec", tt.loader + 24<<20, 8 << 20, RangeExec},
			KernelFar:  MemoryRange{"kernel far", tt.loader + 32<<20, 16 << 20, RangeExec},
			UserFar:    MemoryRange{"user far", tt.loader + 48<<20, 16 << 20, RangeExec},
			KernelData: MemoryRange{"kernel data", tt.loader + 64<<20, 64 << 20, RangeShared},
			UserData:   MemoryRange{"user data", tt.loader + 128<<20, 64 << 20, RangeShared},
		}
		if err != nil || l != want {
			t.Errorf("LayoutFor(%d) = %+v, %v; want %+v", tt.ram, l, err, want)
		}
	}
	for _, ram := range []uint64{0, 1, PageSize - 1, PageSize + 1, MaxRAM + PageSize, ^uint64(PageSize - 1)} {
		if l, err := LayoutFor(ram); err == nil {
			t.Errorf("LayoutFor(%d) = %+v, want an error", ram, l)
		}
	}
}

func TestPlace(t *testing.T) {
	const size = ExecSize
	const kernel = 0xffffffff80000000
	ram := span{0, 64<<20 - 1}
	tests := []struct {
		name       string
		used       []span
		must, want []span
		va         GVA
		err        bool
	}{
		{"behind high text", []span{ram, {kernel, kernel + 0x1fffff}}, []span{{kernel, kernel + 0x1fffff}}, nil, kernel + 0x200000, false},
		{"behind unaligned text", []span{ram, {kernel, kernel + 0x200fff}}, []span{{kernel, kernel + 0x200fff}}, nil, kernel - size, false},
		{"before text with much data behind", []span{ram, {kernel, kernel + 64<<20 - 1}}, []span{{kernel, kernel + 0xfff}}, nil, kernel - size, false},
		{"low text in the identity map", []span{ram}, []span{{0x400000, 0x4fffff}}, nil, 64 << 20, false},
		// All of the lower 2 GiB and more is RAM: round the address space to the top.
		{"wraps around zero", []span{{0, 4<<30 - 1}}, []span{{0x400000, 0x4fffff}}, nil, ^GVA(0) - size - page2M + 1, false},
		{"wraps around the top", []span{ram, {kernel - 2<<30, ^GVA(0)}}, []span{{kernel + 1<<30, kernel + 1<<30 + 0xfffff}}, nil, 64 << 20, false},
		{"nothing in reach", []span{{0, 4<<30 - 1}, {kernel, ^GVA(0)}}, []span{{0x400000, 0x4fffff}}, nil, 0, true},
		{"text too far apart", []span{ram}, []span{{kernel, kernel}, {kernel - 4<<30, kernel - 4<<30}}, nil, 0, true},
		{"text nearly 4 GiB long", []span{ram, {1 << 40, 1<<40 + 4<<30 - 1}}, []span{{1 << 40, 1<<40 + 4<<30 - 1}}, nil, 0, true},
		{"last lower addresses", []span{ram, {1<<47 - page2M, 1<<47 - 1}}, []span{{1<<47 - page2M, 1<<47 - 1}}, nil, 1<<47 - page2M - size, false},
		{"first higher addresses", []span{ram, {^GVA(1<<47 - 1), ^GVA(1<<47-1) + 0xfff}}, []span{{^GVA(1<<47 - 1), ^GVA(1<<47-1) + 0xfff}}, nil, ^GVA(1<<47-1) + page2M, false},
		// Data 1.9 GiB after the text: the near place before the text cannot reach
		// it.
		{"data far behind", []span{ram, {1 << 40, 1<<40 + page2M - 1}, {1<<40 + page2M, 1<<40 + 2043<<20 - 1}}, []span{{1 << 40, 1<<40 + 0xfff}}, []span{{1<<40 + 2042<<20, 1<<40 + 2043<<20 - 1}}, 1<<40 - size, false},
		{"data in reach from one side only", []span{ram, {1 << 40, 1<<40 + page2M - 1}, {1<<40 + 2044<<20, 1<<40 + 2049<<20 - 1}}, []span{{1 << 40, 1<<40 + 0xfff}}, []span{{1<<40 + 2044<<20, 1<<40 + 2049<<20 - 1}}, 1<<40 + page2M, false},
		{"data in reach from nowhere", []span{ram, {1 << 40, 1<<40 + 0xfff}}, []span{{1 << 40, 1<<40 + 0xfff}}, []span{{1 << 41, 1<<41 + 0xfff}}, 1<<40 - size, false},
	}
	for _, tt := range tests {
		va, err := place(size, tt.used, tt.must, tt.want)
		if va != tt.va || (err != nil) != tt.err {
			t.Errorf("%s: %v, %v; want %v", tt.name, va, err, tt.va)
		}
	}
	_, err := place(size, []span{{0, 4<<30 - 1}, {kernel, ^GVA(0)}}, []span{{0x400000, 0x4fffff}}, nil)
	if err == nil || !strings.Contains(err.Error(), "no free 8 MiB of addresses within 2 GiB") {
		t.Error(err)
	}
}

// FuzzPlace checks every place that is found against the rule.
func FuzzPlace(f *testing.F) {
	f.Add(uint64(0xffffffff80000000), uint64(0x1000), uint64(64<<20), uint64(0x400000), uint64(0x1000))
	f.Add(uint64(0x400000), uint64(0x1000), uint64(4<<30), uint64(1<<46), uint64(1<<46))
	f.Fuzz(func(t *testing.T, text, textSize, ram, other, otherSize uint64) {
		text = uint64(GVA(int64(text<<16) >> 16))
		m := span{GVA(text), GVA(text + textSize%(1<<33))}
		o := span{GVA(other), GVA(other + otherSize)}
		if m.last < m.first || o.last < o.first {
			return
		}
		used := []span{{0, GVA(ram % (MaxRAM + 1))}, m, o}
		va, err := place(ExecSize, used, []span{m}, nil)
		if err != nil {
			return
		}
		s := span{va, va + ExecSize - 1}
		if uint64(va)%page2M != 0 || !s.first.Canonical() || !s.last.Canonical() || s.last < s.first || int64(s.first^s.last) < 0 {
			t.Fatalf("bad place %v", va)
		}
		for _, u := range used {
			if s.first <= u.last && u.first <= s.last {
				t.Fatalf("place %v overlaps %v to %v", va, u.first, u.last)
			}
		}
		for _, a := range []GVA{s.first, s.last} {
			for _, b := range []GVA{m.first, m.last, m.first + (m.last-m.first)/2} {
				if d := int64(a - b); d > 1<<31-PageSize || d < -(1<<31-PageSize) {
					t.Fatalf("%v is %#x from %v", a, d, b)
				}
			}
		}
	})
}
