//go:build linux && amd64

package bpf

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// TestPrune: code that constants make unreachable is no reason to reject a program, to
// warn of it, or to run it on the host.
func TestPrune(t *testing.T) {
	c, host, guest := bothEnds(t, "prune.o", "kprobe/vfs_read", testKernel(t))
	p := c.find(t, "constants")
	if why := p.HostReason(); why != "" {
		t.Error(why)
	}
	if h, fns := p.Helpers(), p.fns.starts; len(h) != 0 || len(fns) != 1 {
		t.Errorf("it calls %v and functions at %v", h, fns)
	}
	var names []string
	for _, m := range p.Maps() {
		names = append(names, m.Spec().Name)
	}
	slices.Sort(names)
	if want := []string{".bss", ".kconfig", ".rodata"}; !slices.Equal(names, want) {
		t.Errorf("it uses %q, want %q", names, want)
	}
	for i, run := range []func(x86.Regs) (uint64, error){host, guest} {
		if r0, err := run(x86.Regs{}); uint32(r0) != math.MaxUint32-1 || err != nil || c.variable(t, "runs") != uint64(i+1) {
			t.Errorf("%#x, %v, %d runs", r0, err, c.variable(t, "runs"))
		}
	}
	// Nothing changes the constants.
	values, err := c.Maps[".rodata"].Lookup(u32(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Maps[".rodata"].Update(u32(0), values, UpdateAny); err != nil {
		t.Error(err)
	}
	values[0][0]++
	if err := c.Maps[".rodata"].Update(u32(0), values, UpdateAny); !errors.Is(err, errFrozen) {
		t.Error(err)
	}
	if err := c.Maps[".rodata"].Restore([][][]byte{{u32(0), values[0]}}); err != nil {
		t.Error(err)
	}
	if now, err := c.Maps[".rodata"].Lookup(u32(0)); err != nil || now[0][0] != values[0][0]-1 {
		t.Errorf("% x, %v", now, err)
	}
	if _, host, guest = bothEnds(t, "prune.o", "kprobe/vfs_open", testKernel(t)); true {
		for _, run := range []func(x86.Regs) (uint64, error){host, guest} {
			if r0, err := run(x86.Regs{}); r0 != 1 || err != nil {
				t.Errorf("of 64 bits: %d, %v", r0, err)
			}
		}
	}
}

// TestPruneSet: the constants are those that the user has set, and variables that
// programs can write are none.
func TestPruneSet(t *testing.T) {
	old := testKernel(t)
	old.Version = KernelVersion("4.19")
	for _, tt := range []struct {
		section string
		k       *Kernel
		set     map[string]string
		want    string
	}{
		{"kprobe/vfs_read", testKernel(t), map[string]string{"level": "0"}, ""},
		{"kprobe/vfs_read", testKernel(t), map[string]string{"enabled": "true"}, `program "constants" in section "kprobe/vfs_read", instruction 65: it calls kernel_function, a function of the kernel`},
		{"kprobe/vfs_read", testKernel(t), map[string]string{"level": "3"}, "it calls kernel_function"},
		{"kprobe/vfs_read", testKernel(t), map[string]string{"low": "0"}, "it calls kernel_function"},
		{"kprobe/vfs_read", old, nil, "unknown helper send_signal (109)"},
		{"kprobe/vfs_write", testKernel(t), nil, "unknown helper send_signal (109)"},
	} {
		_, err := loadIn(t, "prune.o", Selection{Section: tt.section, Kernel: tt.k, Set: tt.set})
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, %v: %v, want %q", tt.section, tt.set, err, tt.want)
		}
	}
}

// TestConstantIn: a load is a constant only in a frozen map, and as the processor reads it.
func TestConstantIn(t *testing.T) {
	s := MapSpec{Frozen: true, ValueSize: 12, Contents: []byte{1, 2, 3, 4, 5, 6, 7, 0x88, 0xff}}
	for _, tt := range []struct {
		off    int64
		size   int
		signed bool
		want   uint64
		ok     bool
	}{
		{0, 8, false, 0x8807060504030201, true}, {7, 1, true, ^uint64(0x77), true}, {7, 1, false, 0x88, true}, {7, 2, true, ^uint64(0x77), true},
		{8, 4, false, 0xff, true}, {9, 2, false, 0, true}, {11, 1, false, 0, true}, {9, 4, false, 0, false}, {-1, 1, false, 0, false}, {12, 1, false, 0, false},
	} {
		if v, ok := constantIn(&s, tt.off, tt.size, tt.signed); v != tt.want || ok != tt.ok {
			t.Errorf("%+v: %#x, %v", tt, v, ok)
		}
	}
	s.Frozen = false
	if _, ok := constantIn(&s, 0, 8, false); ok {
		t.Error("a variable is a constant")
	}
}
