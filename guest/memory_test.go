package guest

import (
	"errors"
	"testing"
)

func TestMemoryAdd(t *testing.T) {
	page := make([]byte, 3*PageSize)
	tests := []struct {
		name string
		base GPA
		b    []byte
		want string
	}{
		{"below", 0x1000, page[:PageSize], ""},
		{"above", 0x5000, page[:PageSize], ""},
		{"highest", 1<<52 - PageSize, page[:PageSize], ""},
		{"empty", 0x9000, nil, `add memory "new" at 0x9000: no bytes`},
		{"base not a page", 0x9001, page[:PageSize], `add memory "new" at 0x9001: 4096 bytes: base and size must be multiples of 4096`},
		{"size not a page", 0x9000, page[:PageSize+8], `add memory "new" at 0x9000: 4104 bytes: base and size must be multiples of 4096`},
		{"too high", 1<<52 - PageSize, page[:2*PageSize], `add memory "new" at 0xffffffffff000: 8192 bytes reach beyond physical address 2^52`},
		{"wrapping", 1<<64 - PageSize, page[:2*PageSize], `add memory "new" at 0xfffffffffffff000: 8192 bytes reach beyond physical address 2^52`},
		{"unaligned host bytes", 0x9000, page[1 : 1+PageSize], `add memory "new" at 0x9000: host bytes are not 8-byte aligned`},
		{"overlap at its start", 0x4000, page[:PageSize], `add memory "new" at 0x4000: 4096 bytes overlap "old" at 0x2000`},
		{"overlap at its end", 0x1000, page[:2*PageSize], `add memory "new" at 0x1000: 8192 bytes overlap "old" at 0x2000`},
	}
	for _, tt := range tests {
		m := &Memory{}
		if err := m.Add(0x2000, page, "old"); err != nil {
			t.Fatal(err)
		}
		err := m.Add(tt.base, tt.b, "new")
		if got := errText(err); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if want := map[bool]int{true: 2, false: 1}[tt.want == ""]; len(m.Regions()) != want {
			t.Errorf("%s: %d regions, want %d", tt.name, len(m.Regions()), want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestMemorySlice(t *testing.T) {
	m := &Memory{}
	a, b := make([]byte, PageSize), make([]byte, PageSize)
	a[PageSize-1], b[0] = 1, 2
	if err := errors.Join(m.Add(0x1000, a, "a"), m.Add(0x2000, b, "b")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		pa GPA
		n  int
		ok bool
	}{
		{0x1000, 0, true}, {0x1000, PageSize, true}, {0x1fff, 1, true}, {0x2000, 1, true}, {0x2fff, 1, true},
		{0x1fff, 2, false}, // across two regions
		{0xfff, 1, false}, {0x3000, 0, false}, {0x2fff, 2, false}, {0x1000, -1, false}, {1<<64 - 1, 2, false},
	} {
		s, err := m.Slice(tt.pa, tt.n)
		if tt.ok != (err == nil) || tt.ok && (len(s) != tt.n || cap(s) != tt.n) {
			t.Errorf("Slice(%v, %d) = %d bytes, %v", tt.pa, tt.n, len(s), err)
		}
		if err != nil && !errors.Is(err, ErrNoMemory) {
			t.Errorf("Slice(%v, %d): %v does not wrap ErrNoMemory", tt.pa, tt.n, err)
		}
	}
	if _, err := (&Memory{}).Slice(0, 0); err == nil {
		t.Error("no error from a memory without regions")
	}
}
