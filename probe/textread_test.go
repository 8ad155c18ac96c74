package probe_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestTextRead: a guest whose own debugger asks for the bytes of an instruction is given its own, whatever the engine has
// there; of what the guest has put there itself, and where a jump of its own may go, it decides.
func TestTextRead(t *testing.T) {
	const flag, buffer = 0x7000_1000, 0x7000_1100
	img, err := probetest.BuildImage(textBase, false,
		hexFunc(t, "reads", "48 89 f0 90 90 c3"), // mov %rsi,%rax; nop; nop; ret
		hexFunc(t, "probe_it", "e8 00 00 00 00 c3"),
		hexFunc(t, "can_optimize", "e8 00 00 00 00 c3"),
		hexFunc(t, "probed", "48 8d 47 02 48 89 c0 c3"), // lea 2(%rdi),%rax; mov %rax,%rax; ret
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"probe_it", "can_optimize"} { // they call reads
		reads, _ := img.Lookup("reads")
		s, _ := img.Lookup(name)
		for _, seg := range img.Segments {
			if off := s.Addr - seg.VAddr; off < guest.GVA(len(seg.Data)) {
				binary.LittleEndian.PutUint32(seg.Data[off+1:], uint32(reads.Addr-s.Addr-5))
			}
		}
	}
	k := &probetest.Kernel{Image: img, Reads: "reads"}
	f, err := probetest.NewFake(probetest.FakeOptions{Image: img, Symbols: func(*guest.Image) probe.Symbols { return k }, Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	e, at := f.Engine(), symbol(t, f, "probed")
	own := bytes.Clone(img.Code(at, 8))
	// ask has a function of the guest's ask for the instruction at at+off.
	ask := func(what, by string, off int, want uint64, code []byte) {
		t.Helper()
		if err := f.Write(buffer, make([]byte, x86.MaxLen)); err != nil {
			t.Fatal(err)
		}
		got, err := f.Call(0, symbol(t, f, by), buffer, uint64(at)+uint64(off))
		b := make([]byte, len(code))
		if err == nil {
			err = f.Read(buffer, b)
		}
		if err != nil || got != want || !bytes.Equal(b, code) {
			t.Errorf("%s: %s at +%d returns %#x and % x, %v; want %#x and % x", what, by, off, got, b, err, want, code)
		}
	}
	none := make([]byte, 8)
	write := func(b byte) {
		t.Helper()
		if _, err := e.WriteText(at, []byte{b}, func() bool { return true }, nil); err != nil {
			t.Fatal(err)
		}
	}
	ask("without probes", "probe_it", 0, uint64(at), none)
	p := &probe.Kprobe{Symbol: "probed", Pre: emptyHandler}
	if err := e.Register(p); err != nil {
		t.Fatal(err)
	}
	for _, jump := range []bool{false, true} {
		what := "an int3"
		if jump {
			what = "a jump"
			if err := e.Optimize(); err != nil {
				t.Fatal(err)
			}
			if i, _ := e.Info(p); !i.Optimized {
				t.Fatalf("%+v", i.Unoptimized)
			}
		}
		ask(what, "probe_it", 0, buffer, own)
		ask(what, "can_optimize", 0, 0, none)
		if !jump {
			ask(what, "probe_it", 4, uint64(at)+4, none)
		} else {
			ask(what, "probe_it", 4, buffer, own[4:])
		}
		ask(what, "probe_it", 7, uint64(at)+7, none)
	}
	write(x86.Int3)
	ask("the guest's own int3", "probe_it", 0, uint64(at), none)
	write(own[0])
	ask("without it", "probe_it", 0, buffer, own)
	if err := e.Unregister(p); err != nil {
		t.Error(err)
	}
	ask("the probe has gone", "probe_it", 0, uint64(at), none)
}
