package guest

import "testing"

// TestDirty: a write by the guest's rights sets the accessed and the dirty bit of the entry that maps the page, as the
// processor does, and nothing else does.
func TestDirty(t *testing.T) {
	const bits = pteAccessed | pteDirty
	p := sampleTables(t)
	as := NewAddressSpace(p.mem, 1<<12)
	entry := func(table GPA, i int) uint64 {
		v, _ := loadWord(p.mem.Regions(), table<<12+GPA(8*i))
		return v
	}
	tables := func() (all []uint64) {
		for table := range GPA(5) {
			for i := range 512 {
				all = append(all, entry(table, i))
			}
		}
		return all
	}
	for _, tt := range []struct {
		what string
		do   func() error
		ok   bool
		set  map[GPA]int // the entries that change: table and index
	}{
		{"a read", func() error { return as.Read(0x4000, make([]byte, 8)) }, true, nil},
		{"a poke", func() error { return as.Poke(0x4000, make([]byte, 8)) }, true, nil},
		{"a write to a read-only page", func() error { return as.Write(0x3000, make([]byte, 8)) }, false, nil},
		{"a write of user code to a supervisor page", func() error { return as.AsUser().Write(0x1000, make([]byte, 8)) }, false, nil},
		{"a write that ends in a hole", func() error { return as.Write(0x1ffc, make([]byte, 8)) }, false, nil},
		{"a write", func() error { return as.Write(0x1008, make([]byte, 8)) }, true, map[GPA]int{4: 1}},
		{"the same again", func() error { return as.Write(0x1010, make([]byte, 8)) }, true, nil},
		{"a write of user code", func() error { return as.AsUser().Write(0x4008, make([]byte, 8)) }, true, map[GPA]int{4: 4}},
		{"a write to two pages", func() error { return as.Write(0x4ffc, make([]byte, 8)) }, true, map[GPA]int{4: 5}},
		{"a page of 2 MiB", func() error { return as.Write(0x200008, nil) }, true, nil},
		{"a byte of a page of 2 MiB", func() error { return as.Write(0x21f000, []byte{1}) }, true, map[GPA]int{3: 1}},
		{"a byte of a page of 1 GiB", func() error { return as.Write(0x40000000+31<<12, []byte{1}) }, true, map[GPA]int{2: 1}},
	} {
		before := tables()
		if err := tt.do(); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.what, err)
		}
		for table, i := range tt.set {
			before[int(table)*512+i] |= bits
		}
		for k, v := range tables() {
			if v != before[k] {
				t.Errorf("%s: entry %d of table %d is %#x, want %#x", tt.what, k%512, k/512, v, before[k])
			}
		}
	}
	p.set(4, 1, 6<<12|tabPW)
	if n := testing.AllocsPerRun(10, func() { _ = as.Write(0x1000, []byte{1}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestDirtyWhileItChanges: a write while the guest changes the entry marks the entry that it has followed.
func TestDirtyWhileItChanges(t *testing.T) {
	p := sampleTables(t)
	as := NewAddressSpace(p.mem, 1<<12)
	regions := p.mem.Regions()
	const at = 4<<12 + 8
	stop, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			storeWord(regions, at, []uint64{6<<12 | tabPW, 0, 7<<12 | tabPW}[i%3])
		}
	}()
	for range 100_000 {
		_ = as.Write(0x1000, []byte{1})
	}
	close(stop)
	<-done
	v, _ := loadWord(regions, at)
	if frame := v & pteAddr; v != 0 && frame != 6<<12 && frame != 7<<12 {
		t.Errorf("the entry is %#x", v)
	}
}
