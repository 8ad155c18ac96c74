package bpf

import (
	"fmt"
	"strings"
	"testing"
)

// TestMulti makes a copy of a program for each function that its pattern matches.
func TestMulti(t *testing.T) {
	file := readObject(t, "multi.o")
	functions := map[string][]string{"vfs_*": {"vfs_read", "vfs_write"}, "*_fork": {"do_fork"}}
	match := func(pattern string, returns bool, most int) ([]string, int) {
		if returns != (pattern == "*_fork") {
			t.Errorf("%s: returns %v", pattern, returns)
		}
		return functions[pattern], 3
	}
	o, err := LoadObject(file, Selection{Match: match})
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.Load(1, Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var got []string
	for _, p := range c.Programs {
		got = append(got, fmt.Sprintf("%s %v %s", p.Name(), p.Kind(), p.AttachTo))
	}
	if s := strings.Join(got, ", "); s != "entries kprobe vfs_read, entries_2 kprobe vfs_write, returns kretprobe do_fork" {
		t.Error(s)
	}
	if c.Programs[0].Instructions() != c.Programs[1].Instructions() || c.Programs[0].Maps()[0] != c.Programs[2].Maps()[0] {
		t.Error("copies were checked on their own, or have other maps")
	}
	if len(o.Notes) != 2 || o.Notes[0] != `section "kprobe.multi/vfs_*": functions that match and cannot be probed are left out: 3 of 5` {
		t.Errorf("%q", o.Notes)
	}
	// Without a guest the place is the pattern.
	if o, err := LoadObject(file, Selection{Section: "kprobe.multi/vfs_*"}); err != nil || len(o.Programs) != 1 || o.Programs[0].AttachTo != "vfs_*" {
		t.Error(o, err)
	}
	functions["vfs_*"] = nil
	if _, err := LoadObject(file, Selection{Match: match}); err == nil || !strings.Contains(err.Error(), `no function that matches "vfs_*" can be probed`) {
		t.Error(err)
	}
	none := func(string, bool, int) ([]string, int) { return nil, 0 }
	if _, err := LoadObject(file, Selection{Match: none}); err == nil || !strings.Contains(err.Error(), `the guest has no function that matches "vfs_*"`) {
		t.Error(err)
	}
	if _, err := LoadObject(file, Selection{Match: none, Has: func(string) bool { return true }}); err == nil || !strings.Contains(err.Error(), "the guest has no function of") {
		t.Error(err)
	}
	many := func(_ string, _ bool, most int) ([]string, int) { return make([]string, most), 0 }
	if _, err := LoadObject(file, Selection{Match: many}); err == nil || !strings.Contains(err.Error(), "matches more than 1024 functions") {
		t.Error(err)
	}
}
