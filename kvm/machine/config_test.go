package machine

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
)

func TestConfigCheck(t *testing.T) {
	img := tinyGuest(t, spin, nil)
	for _, tc := range []struct {
		name  string
		in    Config
		field string // at fault; "" = none
	}{
		{"no image", Config{}, "Image"},
		{"defaults", Config{Image: img}, ""},
		{"vcpus -1", Config{Image: img, VCPUs: -1}, "VCPUs"},
		{"vcpus max", Config{Image: img, VCPUs: guest.MaxVCPUs}, ""},
		{"vcpus max+1", Config{Image: img, VCPUs: guest.MaxVCPUs + 1}, "VCPUs"},
		{"memory one page", Config{Image: img, Memory: guest.PageSize}, ""},
		{"memory one page less a byte", Config{Image: img, Memory: guest.PageSize - 1}, "Memory"},
		{"memory one page and a byte", Config{Image: img, Memory: guest.PageSize + 1}, "Memory"},
		{"memory max", Config{Image: img, Memory: guest.MaxRAM}, ""},
		{"memory max and a page", Config{Image: img, Memory: guest.MaxRAM + guest.PageSize}, "Memory"},
		{"memory all of it", Config{Image: img, Memory: math.MaxUint64}, "Memory"},
		{"tick min", Config{Image: img, Tick: MinTick}, ""},
		{"tick min-1", Config{Image: img, Tick: MinTick - 1}, "Tick"},
		{"tick off", Config{Image: img, Tick: -1}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.in.check()
			var e *ConfigError
			if errors.As(err, &e) != (tc.field != "") || e != nil && e.Field != tc.field {
				t.Errorf("got %v, want an error of field %q", err, tc.field)
			}
			if err == nil && (tc.in.VCPUs < 1 || tc.in.Memory == 0 || tc.in.Tick == 0 || tc.in.Log == nil) {
				t.Errorf("defaults not filled in: %+v", tc.in)
			}
		})
	}
	c := Config{Image: img}
	if err := c.check(); err != nil || c.VCPUs != 1 || c.Memory != DefaultMemory || c.Tick != 10*time.Millisecond {
		t.Errorf("defaults: %+v, %v", c, err)
	}
}

// TestNewFails: New says why, and leaves nothing behind (goleak looks at
// goroutines, the machine's own tests at the rest).
func TestNewFails(t *testing.T) {
	if _, err := New(Config{Image: tinyGuest(t, spin, nil), KVMPath: t.TempDir() + "/none"}); !errors.Is(err, kvm.ErrNoKVM) {
		t.Errorf("no device: %v", err)
	}
	m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), Memory: 16 << 20})
	closeMachine(t, m)
	var ie *guest.ImageError
	if _, err := New(Config{Image: tinyGuest(t, spin, nil), Memory: 4096}); !errors.As(err, &ie) {
		t.Errorf("memory too small for the image: %v", err)
	}
	if err := m.Close(context.Background()); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestVCPUCPUID(t *testing.T) {
	in := []kvm.CPUIDEntry{
		{Function: 0, Eax: 1},
		{Function: 1, Ebx: 0xaabbccdd, Ecx: 0xffffffff, Edx: 5},
		{Function: 7, Ecx: 0xffffffff},
		{Function: 7, Index: 1, Ecx: 0xffffffff},
		{Function: 0xb, Edx: 9},
		{Function: 0xb, Index: 1, Edx: 9},
		{Function: 0x1f, Edx: 9},
	}
	want := []kvm.CPUIDEntry{
		{Function: 0, Eax: 1},
		{Function: 1, Ebx: 0x07bbccdd, Ecx: 0xfedfffff, Edx: 5},
		{Function: 7, Ecx: 0xfffeffff},
		{Function: 7, Index: 1, Ecx: 0xffffffff},
		{Function: 0xb, Edx: 7},
		{Function: 0xb, Index: 1, Edx: 7},
		{Function: 0x1f, Edx: 7},
	}
	if diff := cmp.Diff(want, bareCPUID(in, 7)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if in[1].Ebx != 0xaabbccdd {
		t.Error("the input was changed")
	}
}
