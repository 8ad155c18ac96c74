package bpf

import (
	"bytes"
	"debug/elf"
	"slices"
	"strings"
	"testing"
)

// TestCarriedObject: a program of the host that carries an object file, as tools do, is loaded
// as that file is.
func TestCarriedObject(t *testing.T) {
	object := readObject(t, "count.o")
	header := func(m elf.Machine) []byte {
		b := append(slices.Clone(objectMagic), make([]byte, 57)...)
		b[machineAt] = byte(m)
		return b
	}
	host := slices.Concat(header(elf.EM_X86_64), bytes.Repeat([]byte{0xcc}, 1001), []byte(elf.ELFMAG), header(elf.EM_386))
	o, err := LoadObject(slices.Concat(host, object, host), Selection{})
	if err != nil || len(o.Programs) != 1 || o.Programs[0].AttachTo != "vfs_read" {
		t.Errorf("%+v, %v", o, err)
	}
	for what, file := range map[string][]byte{
		"several object files":   slices.Concat(host, object, object),
		"carries no object file": host,
		"EOF":                    slices.Concat(host, object[:len(object)/2]),
	} {
		if _, err := LoadObject(file, Selection{}); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want something about %q", err, what)
		}
	}
}

// TestObjectAtName: a program whose section names no function goes where its own name is
// given a place.
func TestObjectAtName(t *testing.T) {
	object := bytes.ReplaceAll(readObject(t, "count.o"), []byte("kprobe/vfs_read\x00"), []byte("kprobe\x00fs_read.\x00"))
	for at, want := range map[string]string{"vfs_read": "", "count": "vfs_write"} {
		o, err := LoadObject(object, Selection{At: map[string]string{at: "vfs_write"}})
		if err != nil || len(o.Programs) != 1 || o.Programs[0].AttachTo != want {
			t.Errorf("at %q: %+v, %v", at, o, err)
		}
	}
}
