package machine

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// poking is a guest whose vCPU 0 writes 0xf8 over the nop at fn, calls it and ends. The others, which it
// waits for, spin.
func poking(vcpus int) (code []byte, fn tinySym) {
	code = asm(
		0xb8, 1, 0, 0, 0, // mov $1,%eax
		0x0f, 0xa2, // cpuid
		0xc1, 0xeb, 24, // shr $24,%ebx
		0x74, 12, // jz 1f
		0xc6, 0x04, 0x25, 0x00, 0x00, 0x20, 0x81, 1, // movb $1,tinyData
		0xf3, 0x90, 0xeb, 0xfc, // pause; jmp .-2
		0x0f, 0x20, 0xc0, // 1: mov %cr0,%rax
		0x48, 0x0f, 0xba, 0xf0, 16, // btr $16,%rax (WP)
		0x0f, 0x22, 0xc0, // mov %rax,%cr0
		0x48, 0xc7, 0xc4, 0x00, 0x08, 0x20, 0x81, // mov $tinyData+0x800,%rsp
		0x48, 0xc7, 0xc0, 0x80, 0x00, 0x00, 0x81, // mov $fn,%rax
		0xf3, 0x90, // 2: pause
		0x80, 0x3c, 0x25, 0x00, 0x00, 0x20, 0x81, min(vcpus-1, 1), // cmpb $vcpus-1,tinyData
		0x75, 0xf4, // jne 2b
		0xc6, 0x00, 0xf8, // movb $0xf8,(%rax)
		0xff, 0xd0, // call *%rax
		0xe6, guest.PortExit, // out %al,$PortExit
		0xeb, 0xfe,
	)
	for len(code) < 0x80 {
		code = append(code, 0xcc)
	}
	return append(code, 0x90, 0xc3), tinySym{"fn", tinyText + 0x80, 2}
}

// pokingMachine makes a machine of it whose text is followed, with a probe on fn.
func pokingMachine(t *testing.T, vcpus int) (*Machine, *probe.Kprobe) {
	t.Helper()
	code, fn := poking(vcpus)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), VCPUs: vcpus, Memory: 16 << 20, Tick: -1})
	if h := m.Host(); !h.KVM.Readonly || h.Traps.CPL0.Int3 == host.DeliveryVector {
		t.Log("this host has no read-only memory, or gives int3s of kernel code to a vector that this guest does not have")
		return nil, nil
	}
	b := *m.booted.Load()
	b.home = guest.Home{Start: tinyText, Size: guest.PageSize, PA: tinyPhys}
	m.booted.Store(&b)
	err := m.Stop(func(probe.World) error {
		return m.protectText(guest.MemoryRange{Base: tinyPhys, Size: guest.PageSize})
	})
	if err != nil {
		t.Fatal(err)
	}
	k := &probe.Kprobe{Symbol: "fn"}
	if err := m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	return m, k
}

// wantPoked checks that fn is what the guest wrote, with the probe on it hit there.
func wantPoked(t *testing.T, m *Machine, k *probe.Kprobe) {
	t.Helper()
	if err := m.Engine().Unregister(k); err != nil {
		t.Error(err)
	}
	b := make([]byte, 2)
	if err := m.Peek(tinyText+0x80, b); err != nil || b[0] != 0xf8 {
		t.Errorf("fn is % x, %v; the guest has written f8", b, err)
	}
}

// TestTextWriteInTurn: a vCPU that waits until its write is below the probes lets the others
// come to rest, where one runs at a time.
func TestTextWriteInTurn(t *testing.T) {
	m, k := pokingMachine(t, 2)
	if m == nil {
		return
	}
	w := &probe.Watch{Addr: tinyData, Len: 8, Access: probe.AccessWrite, Emulate: true}
	if err := m.Engine().Watch(w); err != nil {
		t.Fatal(err)
	}
	if s := run(t, m); s.Phase != PhaseExited {
		t.Errorf("%+v", s)
	}
	if s, _, _ := m.Engine().Stats(k); s.Hits != 1 {
		t.Errorf("%d hits, want 1", s.Hits)
	}
	wantPoked(t, m, k)
}

// failing is the target of an engine, whose world cannot be stopped for some times.
type failing struct {
	target
	left atomic.Int64
	err  error
}

func (f *failing) Stop(do func(probe.World) error) error {
	if f.left.Add(-1) >= 0 {
		return f.err
	}
	return f.target.Stop(do)
}

// TestTextWriteFails: what the guest has written to its text is not lost when the host
// cannot write it at once: it does later, or the guest is ended and told why.
func TestTextWriteFails(t *testing.T) {
	injected := errors.New("injected")
	for _, c := range []struct {
		name  string
		times int64
		err   error
		want  Phase
	}{
		{"once", 1, injected, PhaseExited},
		{"some times", 3, injected, PhaseExited},
		{"a handler does not return", 12, &StopTimeoutError{CPU: 1, After: time.Millisecond}, PhaseExited},
		{"always", 1 << 40, injected, PhaseCrashed},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, k := pokingMachine(t, 1)
			if m == nil {
				return
			}
			if err := m.Engine().Unregister(k); err != nil {
				t.Fatal(err)
			}
			f := &failing{target: m.target(), err: c.err}
			e, err := probe.New(f, probe.Options{})
			if err != nil {
				t.Fatal(err)
			}
			m.engine = e
			k = &probe.Kprobe{Symbol: "fn"}
			if err := e.Register(k); err != nil {
				t.Fatal(err)
			}
			f.left.Store(c.times)
			s := run(t, m)
			f.left.Store(0)
			if s.Phase != c.want {
				t.Errorf("%+v", s)
			}
			if c.want == PhaseExited {
				wantPoked(t, m, k)
			} else if s.Crash == nil || s.Crash.Kind != CrashHost || !strings.Contains(s.Crash.Text, "could not be written") || !strings.Contains(s.Crash.Text, "injected") {
				t.Errorf("%+v", s.Crash)
			}
		})
	}
}
