package program

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// kernelFake is a fake whose kernel has unwind data, and memory for each vCPU at GS.
type kernelFake struct {
	*probetest.Fake
	k *probetest.Kernel
}

func newKernelFake(t *testing.T) kernelFake {
	t.Helper()
	nops := func(n int) []byte { return slices.Repeat([]byte{0x90}, n) }
	img, err := probetest.BuildImage(text, false, probetest.Func{Name: "vfs_read", Code: append(nops(16), 0xc3)}, probetest.Func{Name: "caller", Code: nops(64)})
	if err != nil {
		t.Fatal(err)
	}
	k := &probetest.Kernel{Image: img, GS: true, Stacks: 64 << 10, Faults: &guest.FaultProfile{CountOff: 0x60, StackOff: 0x68},
		Frames: map[guest.GVA]guest.FrameRule{text: {CFA: 8, Return: -8}}}
	f, err := probetest.NewFake(probetest.FakeOptions{
		GS: true, Image: img, Symbols: func(*guest.Image) probe.Symbols { return k }, Probe: probe.Options{OptimizeDelay: -1},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return kernelFake{f, k}
}

// SharedBase implements Shared.
func (f kernelFake) SharedBase(bool) guest.GVA { return 1 << 20 }

func (f kernelFake) config() Config {
	return Config{
		CPUs: 1, Shared: f, Engine: f.Engine(), Now: func() int64 { return 1000 },
		Stop:  func(do func() error) error { return f.Stop(func(probe.World) error { return do() }) },
		Clock: func() (Clock, error) { return Clock{Clock: bpf.Clock{TSC: 5, Mult: 1 << 32, Time: 7}}, nil },
	}
}

// next returns where the next piece of shared memory of that size would be.
func (f kernelFake) next(t *testing.T, size int) guest.GVA {
	t.Helper()
	at, _, err := f.AllocShared(size, false)
	if err != nil {
		t.Fatal(err)
	}
	f.FreeShared(at)
	return at
}

// TestKernelStacks: programs that take the stack of a kernel with unwind data run in the guest, with a stack that their detour has walked;
// and nothing of that is left when they are gone.
func TestKernelStacks(t *testing.T) {
	f := newKernelFake(t)
	free := f.next(t, 64)
	rt := newRuntime(t, f.config())
	load := func() (*Object, *Program) {
		t.Helper()
		o, err := rt.Load(example(t, "stacks.o"), LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(o.Programs, func(p *Program) bool { return walks(p.prog) })
		return o, o.Programs[i]
	}
	o, p := load()
	if p.Place != bpf.InGuest {
		t.Fatalf("it runs on the host: %s", p.Why)
	}
	k := &probe.Kprobe{Symbol: "vfs_read"}
	if p.Attach(k, text, false, true, ""); k.Stage == nil || k.Stage.Walk != 16 || len(k.Stage.Fixups) != 0 {
		t.Fatalf("no stage with a walk of 16 addresses: %s", p.Why)
	}
	at, _, err := f.Engine().HoldWalks(text)
	if err != nil {
		t.Fatal(err)
	}
	f.Engine().ReleaseWalks()
	if got := binary.LittleEndian.Uint64(p.blocks.areaOf(0).Bytes[304:]); got != uint64(at) {
		t.Errorf("its block has %#x, the stack is at %v", got, at)
	}
	if err := f.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	if err := f.Engine().Optimize(); err != nil {
		t.Fatal(err)
	}
	if i, _ := f.Engine().Info(k); !i.InGuest {
		t.Errorf("%+v", i)
	}
	if err := f.Engine().Unregister(k); err != nil {
		t.Fatal(err)
	}
	o.Close()
	if err := f.Engine().Collect(); err != nil {
		t.Fatal(err)
	}
	if got := f.next(t, 64); got != free {
		t.Errorf("memory is left: the next is at %v, was at %v", got, free)
	}

	// At code whose rule is not simple it runs on the host.
	f.k.Frames[text] = guest.FrameRule{Indirect: true, CFA: 8, Return: -8}
	o, p = load()
	defer o.Close()
	k = &probe.Kprobe{Symbol: "vfs_read"}
	if p.Attach(k, text, false, true, ""); k.Stage != nil || !strings.Contains(p.Why, "only the host finds the caller") {
		t.Errorf("in the guest, or because %q", p.Why)
	}
	if got := f.next(t, 64); got == free {
		t.Error("the maps take no memory")
	}
}
