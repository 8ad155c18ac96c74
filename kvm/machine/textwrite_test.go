package machine

import (
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// pokingGuest is a guest whose vCPU 0 writes 0xf8 over the nop at fn, calls it and ends. The others, which it
// waits for, spin.
func pokingGuest(vcpus int) (code []byte, fn tinySym) {
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
	code, fn := pokingGuest(vcpus)
	return followedMachine(t, vcpus, code, fn)
}

// followedMachine makes a machine of a guest whose text is followed, with a probe on fn.
func followedMachine(t *testing.T, vcpus int, code []byte, syms ...tinySym) (*Machine, *probe.Kprobe) {
	t.Helper()
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, syms...), VCPUs: vcpus, Memory: 16 << 20, Tick: -1})
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

// TestTextReadBack: a guest that patches a function and reads that back with interrupts off, as Linux does, finds what it
// has written; other vCPUs that call the function meanwhile do not come past the probe.
func TestTextReadBack(t *testing.T) {
	const poke, fn = 0xc0, 0x100
	code := asm(
		0xb8, 0x01, 0x00, 0x00, 0x00, // mov $0x1,%eax
		0x0f, 0xa2, // cpuid
		0x0f, 0x20, 0xc0, // mov %cr0,%rax
		0x48, 0x0f, 0xba, 0xf0, 0x10, // btr $0x10,%rax
		0x0f, 0x22, 0xc0, // mov %rax,%cr0
		0x48, 0xc7, 0xc7, 0x00, 0x01, 0x00, 0x81, // mov $0xffffffff81000100,%rdi
		0x48, 0xc7, 0xc6, 0x00, 0x00, 0x20, 0x81, // mov $0xffffffff81200000,%rsi
		0xc1, 0xeb, 0x18, // shr $0x18,%ebx
		0x74, 0x1d, // je ffffffff81000042 <_start+0x42>
		0x48, 0x8d, 0xa6, 0x00, 0x10, 0x00, 0x00, // lea 0x1000(%rsi),%rsp
		0xc6, 0x06, 0x01, // movb $0x1,(%rsi)
		0xff, 0xd7, // call *%rdi
		0x48, 0xff, 0x46, 0x08, // incq 0x8(%rsi)
		0x80, 0x7e, 0x01, 0x00, // cmpb $0x0,0x1(%rsi)
		0x74, 0xf4, // je ffffffff8100002f <_start+0x2f>
		0xc6, 0x06, 0x02, // movb $0x2,(%rsi)
		0xf3, 0x90, // pause
		0xeb, 0xfc, // jmp ffffffff8100003e <_start+0x3e>
		0x48, 0x8d, 0xa6, 0x00, 0x08, 0x00, 0x00, // lea 0x800(%rsi),%rsp
		0xf3, 0x90, // pause
		0x80, 0x3e, 0x01, // cmpb $0x1,(%rsi)
		0x75, 0xf2, // jne ffffffff81000042 <_start+0x42>
		0xb9, 0x64, 0x00, 0x00, 0x00, // mov $0x64,%ecx
		0xb0, 0xf8, // mov $0xf8,%al
		0xf6, 0xc1, 0x01, // test $0x1,%cl
		0x74, 0x02, // je ffffffff8100005e <_start+0x5e>
		0xb0, 0xf9, // mov $0xf9,%al
		0xe8, 0x5d, 0x00, 0x00, 0x00, // call ffffffff810000c0 <poke>
		0xff, 0xd7, // call *%rdi
		0x48, 0xff, 0x46, 0x10, // incq 0x10(%rsi)
		0xff, 0xc9, // dec %ecx
		0x75, 0xe8, // jne ffffffff81000055 <_start+0x55>
		0xc6, 0x46, 0x01, 0x01, // movb $0x1,0x1(%rsi)
		0xf3, 0x90, // pause
		0x80, 0x3e, 0x02, // cmpb $0x2,(%rsi)
		0x75, 0xf9, // jne ffffffff81000071 <_start+0x71>
		0x31, 0xc0, // xor %eax,%eax
		0xe6, 0xf4, // out %al,$0xf4
		0xb0, 0x01, // mov $0x1,%al
		0xe6, 0xf4, // out %al,$0xf4
		0xeb, 0xfe, // jmp ffffffff81000080 <_start+0x80>
	)
	for len(code) < poke {
		code = append(code, 0xcc)
	}
	code = append(code, asm(
		0x55,             // push %rbp
		0x48, 0x89, 0xe5, // mov %rsp,%rbp
		0xfa,       // cli
		0x88, 0x07, // mov %al,(%rdi)
		0xba, 0x14, 0x00, 0x00, 0x00, // mov $0x14,%edx
		0x38, 0x07, // cmp %al,(%rdi)
		0x75, 0xac, // jne ffffffff8100007c <_start+0x7c>
		0xff, 0xca, // dec %edx
		0x75, 0xf8, // jne ffffffff810000cc <poke+0xc>
		0xfb, // sti
		0x5d, // pop %rbp
		0xc3, // ret
	)...)
	for len(code) < fn {
		code = append(code, 0xcc)
	}
	m, k := followedMachine(t, 2, append(code, 0x90, 0xc3), tinySym{"fn", tinyText + fn, 2}, tinySym{"__text_poke", tinyText + poke, fn - poke})
	if m == nil {
		return
	}
	paused := make(chan struct{})
	go func() { // a pause waits until what was written is read back
		defer close(paused)
		for m.Phase() != PhaseExited && m.Phase() != PhaseCrashed {
			if err := m.Pause(); err == nil {
				_ = m.Resume()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	s := run(t, m)
	<-paused
	if s.Phase != PhaseExited || s.ExitCode != 0 {
		t.Errorf("%+v: it has not read back what it has written", s)
	}
	calls := make([]byte, 16)
	if err := m.Peek(tinyData+8, calls); err != nil {
		t.Fatal(err)
	}
	other, own := binary.LittleEndian.Uint64(calls), binary.LittleEndian.Uint64(calls[8:])
	if h, _, _ := m.Engine().Stats(k); h.Hits != own+other || own != 100 || other == 0 {
		t.Errorf("%d hits of %d calls by the vCPU that writes and %d by the other", h.Hits, own, other)
	}
	if err := m.Engine().Unregister(k); err != nil {
		t.Error(err)
	}
	b := make([]byte, 2)
	if err := m.Peek(tinyText+fn, b); err != nil || b[0] != 0xf9 {
		t.Errorf("fn is % x, %v; the guest has written f9 last", b, err)
	}
}
