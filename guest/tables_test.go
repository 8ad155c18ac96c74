package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// TestTablesMap adds pages to a booted guest.
func TestTablesMap(t *testing.T) {
	mem, _, st := bootSound(t, BootOptions{VCPUs: 1, RAM: 16 << 20})
	as := NewAddressSpace(mem, st.Root)
	far := st.KernelFar.Base
	for _, tt := range []struct {
		name string
		va   GVA
		pa   GPA
		user bool
		err  error
	}{
		{"near kernel text", testKernel - 800<<20, far, false, nil},
		{"the same again", testKernel - 800<<20, far, false, ErrMapped},
		{"next to it", testKernel - 800<<20 + PageSize, far + PageSize, false, nil},
		{"around zero", 0x3000_0000, far + 2*PageSize, false, nil},
		{"near user text", testUser + 1<<30, st.UserFar.Base, true, nil},
		{"in a large page", 4 << 20, far, false, ErrMapped},
		{"on kernel text", testKernel, far, false, ErrMapped},
	} {
		err := st.Tables.Map(tt.va, tt.pa, tt.user)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.err)
			continue
		}
		if tt.err != nil {
			continue
		}
		want := Mapping{PA: tt.pa + 0x123, Size: page4K, User: tt.user}
		if got, err := as.Translate(tt.va + 0x123); got != want || err != nil {
			t.Errorf("%s: %+v, %v; want %+v", tt.name, got, err, want)
		}
	}
	for _, va := range []GVA{testKernel + 1, 1 << 47} {
		if err := st.Tables.Map(va, far, false); err == nil {
			t.Errorf("mapped %v", va)
		}
	}
}

// TestTablesMapShared: an address space that copied the top level sees later
// mappings.
func TestTablesMapShared(t *testing.T) {
	mem, _, st := bootSound(t, BootOptions{VCPUs: 1, RAM: 16 << 20})
	top, err := mem.Slice(st.Root, PageSize)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := mem.Slice(0x300000, PageSize)
	if err != nil {
		t.Fatal(err)
	}
	copy(copied, top)
	for _, va := range []GVA{testKernel - reach + page2M, testUser + reach - page2M} {
		va &^= PageSize - 1
		if err := st.Tables.Map(va, st.UserFar.Base, true); err != nil {
			t.Fatal(err)
		}
		if _, err := NewAddressSpace(mem, 0x300000).Translate(va); err != nil {
			t.Error(err)
		}
	}
}

// TestTablesMapHostile: the guest writes into its tables.
func TestTablesMapHostile(t *testing.T) {
	for _, e := range []uint64{0x1000 | ptePresent, ^uint64(0), 1<<51 | ptePresent, uint64(page1G) - PageSize | ptePresent} {
		mem, _, st := bootSound(t, BootOptions{VCPUs: 1, RAM: 16 << 20})
		top, err := mem.Slice(st.Root, PageSize)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 512 {
			binary.LittleEndian.PutUint64(top[8*i:], e)
		}
		if err := st.Tables.Map(testKernel-800<<20, st.KernelFar.Base, false); !errors.Is(err, ErrTables) && !errors.Is(err, ErrMapped) {
			t.Errorf("entry %#x: %v", e, err)
		}
	}
}

// FuzzTablesMap maps pages in tables that the guest has filled with arbitrary data,
// loops included: each call returns, and only tables change, in fact only one entry
// and the new tables.
func FuzzTablesMap(f *testing.F) {
	entry := func(at uint32, e uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, at), e)
	}
	const root = page1G
	top := func(va GVA) uint32 { return uint32(uint64(va) >> 39 & 511) }
	near := GVA(testKernel - 800<<20)
	f.Add(uint64(near), []byte{})
	f.Add(uint64(near), entry(top(near), root|ptePresent|pteWrite))          // the root is its own child
	f.Add(uint64(near), entry(top(near), root|ptePresent|ptePS))             // no such page
	f.Add(uint64(near), entry(top(near), 0))                                 // nothing of the half
	f.Add(uint64(near), entry(top(near), 0x1000|ptePresent))                 // a table in RAM
	f.Add(uint64(near), entry(top(near), root+LoaderSize-0x1000|ptePresent)) // the guest's stack
	f.Add(uint64(0x3000_0000), append(entry(0, root|ptePresent), entry(511, root|ptePresent)...))
	mem, img, _ := bootSound(f, BootOptions{VCPUs: 1, RAM: 4 << 20})
	f.Fuzz(func(t *testing.T, va uint64, b []byte) {
		st, err := Boot(mem, img, BootOptions{VCPUs: 1, RAM: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		tables, err := mem.Slice(st.Root, LoaderSize)
		if err != nil {
			t.Fatal(err)
		}
		used := st.Tables.(*Tables).built.used
		for ; len(b) >= 12; b = b[12:] {
			at := binary.LittleEndian.Uint32(b) % uint32(used/8)
			copy(tables[8*at:], b[4:12])
		}
		ram, err := mem.Slice(0, 4<<20)
		if err != nil {
			t.Fatal(err)
		}
		ramBefore, before := bytes.Clone(ram), bytes.Clone(tables)
		for i := range GVA(4) {
			_ = st.Tables.Map(GVA(va)&^(PageSize-1)+i*0x40201000, st.KernelFar.Base, i%2 == 1)
		}
		now := st.Tables.(*Tables).built.used
		if now < used || now > used+4*3*PageSize {
			t.Fatalf("%d bytes of tables, %d before", now, used)
		}
		if !bytes.Equal(ram, ramBefore) || !bytes.Equal(tables[now:], before[now:]) {
			t.Fatal("memory that is no table was written to")
		}
		changed := 0
		for off := 0; off < used; off += 8 {
			if !bytes.Equal(tables[off:off+8], before[off:off+8]) {
				changed++
			}
		}
		if changed > 4 {
			t.Fatalf("%d entries have changed", changed)
		}
	})
}
