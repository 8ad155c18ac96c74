package probetest

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// TestMirrorEndGoes: if a mirror takes long after its jprobe was removed, the int3 at its end goes when it has finished, without
// another change.
func TestMirrorEndGoes(t *testing.T) {
	f, err := NewFake(FakeOptions{CPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	v := &env{T: t, h: f, e: f.Engine()}
	defer func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	j := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "many_args"}, Mirror: "mirror_wait"}
	var inside []*probe.Kprobe // which make the mirror slow
	for _, offset := range v.offsets("mirror_wait")[1:4] {
		inside = append(inside, &probe.Kprobe{Symbol: "mirror_wait", Offset: offset})
	}
	if err := v.e.Register(append([]probe.Probe{j}, inside[0], inside[1], inside[2])...); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := f.Call(0, v.addr("call_many"), 20)
		result <- err
	}()
	for {
		if s, _, _ := v.e.Stats(inside[0]); s.Missed != 0 {
			break
		}
		runtime.Gosched()
	}
	// The vCPU is held up until the removal has given up waiting for the mirror.
	var removed atomic.Bool
	held := make(chan error, 1)
	go func() {
		for !removed.Load() {
			if err := f.Stop(func(probe.World) error { time.Sleep(2 * time.Millisecond); return nil }); err != nil {
				held <- err
				return
			}
		}
		held <- nil
	}()
	v.unregister(&j.Kprobe)
	removed.Store(true)
	if err := <-held; err != nil {
		t.Error(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	end := v.addr("jprobe_return")
	for ctx := patience.Context(t); v.bytes(end, 1)[0] == x86.Int3; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("the int3 at the mirror's end is still there")
		}
	}
	for _, p := range inside {
		v.unregister(p)
	}
	v.checkText()
}
