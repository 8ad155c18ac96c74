package bpf

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// TestMapSizes loads maps whose size is up to the tool that loads them.
func TestMapSizes(t *testing.T) {
	file := readObject(t, "sizes.o")
	o, err := LoadObject(file, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.Load(2, Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if r0, err := NewVM(c.find(t, "sized").Program, 1).Run(make([]byte, RegsSize), NoEnv{}); r0 != 0 || err != nil {
		t.Fatal(r0, err)
	}
	if got := lookup(t, c.Maps["one"], u32(2)); got[0] != 1 {
		t.Errorf("the inner map has %d", got)
	}
	for name, want := range map[string]uint32{"open_size": 10240, "open_ring": 256 << 10, "pinned": 4, "large": 160, "one": 8, "outer": 10240} {
		if got := c.Maps[name].Spec().MaxEntries; got != want {
			t.Errorf("%s: %d entries, want %d", name, got, want)
		}
	}
	notes := strings.Join(o.Notes, "\n")
	for _, want := range []string{
		`map "open_size" has no size in the file: it has 10240 entries here (--map-entries open_size=N sets another size)`,
		`map "open_ring" has no size in the file: it has 262144 bytes here`, `map "large" has no size in the file: it has 160 entries`,
		`map "pinned" is not pinned: only the programs of this file share it`,
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("no note %q in %s", want, notes)
		}
	}
	if o, err := LoadObject(readObject(t, "count.o"), Selection{}); err != nil || len(o.Notes) != 0 {
		t.Error(o, err)
	}
}

// TestRefusedMaps gives the reason for which a type of maps is not supported.
func TestRefusedMaps(t *testing.T) {
	for kind, why := range refusedMaps {
		_, err := new(Object).objectMap("m", &ebpf.MapSpec{Type: ebpf.MapType(kind), KeySize: 4, ValueSize: 8, MaxEntries: 1})
		if knownMaps.has(kind) || err == nil || !strings.Contains(err.Error(), "is not supported: "+why) {
			t.Errorf("%v: %v", kind, err)
		}
	}
}

// TestMapEntries sets the sizes of maps.
func TestMapEntries(t *testing.T) {
	file := readObject(t, "sizes.o")
	for _, tt := range []struct {
		set, want string
		entries   map[string]uint32
	}{
		{"open_size=7,pinned=0x10,open_ring=8192", "", map[string]uint32{"open_size": 7, "pinned": 16, "open_ring": 8192, "one": 8}},
		{"outer=3", "", map[string]uint32{"outer": 3}},
		{"outer=2", `map "outer": 2 entries are too few: the file has a value for entry 2`, nil},
		{"nope=2", `no map "nope" whose size could be set: the programs that are loaded use ["large" "one" "open_ring" "open_size" "outer" "pinned"]`, nil},
		{"open_ring=5000", "want a power of two", nil},
		{"open_size=1048577", "want 1 to 1048576: over the limit", nil},
		{"pinned", "want NAME=N", nil}, {"pinned=0", "N at least 1", nil}, {"pinned=1,pinned=2", "each name once", nil}, {"=1", "want NAME=N", nil}, {"pinned=-1", "want NAME=N", nil},
	} {
		entries, err := ParseMapEntries(tt.set)
		var o *Object
		if err == nil {
			o, err = LoadObject(file, Selection{MapEntries: entries})
		}
		if err == nil {
			var c *Collection
			if c, err = o.Load(2, Heap{}, 0); err == nil {
				c.Close()
			}
		}
		if tt.want != "" {
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %q", tt.set, err, tt.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.set, err)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(tt.entries)) {
			i := slices.IndexFunc(o.Maps, func(m MapSpec) bool { return m.Name == name })
			if got := o.Maps[i].MaxEntries; got != tt.entries[name] {
				t.Errorf("%s: %s has %d entries, want %d", tt.set, name, got, tt.entries[name])
			}
		}
		if strings.Contains(strings.Join(o.Notes, "\n"), `"open_size" has no size`) != (tt.entries["open_size"] == 0) {
			t.Errorf("%s: notes %q", tt.set, o.Notes)
		}
	}
	if _, err := LoadObject(readObject(t, "mixed.o"), Selection{Section: "kprobe/vfs_read", MapEntries: map[string]uint32{".data": 2}}); err == nil || !strings.Contains(err.Error(), `no map ".data"`) {
		t.Error(err)
	}
}
