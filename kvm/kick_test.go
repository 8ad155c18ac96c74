package kvm

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// spin increments a counter in memory for ever.
var spin = []byte{
	0x48, 0xff, 0x04, 0x25, 0x00, 0x00, 0x03, 0x00, // incq 0x30000
	0xeb, 0xf6, // jmp back
}

const spinCounter = 0x30000

// newSpinner makes a guest that spins at a privilege level, with interrupts on
// and none to come. (With interrupts off Bochs would never leave it, see
// TestInterruptWindowClosed.)
func newSpinner(t *testing.T, cpl int) *box {
	t.Helper()
	b := newBoxAt(t, cpl, spin)
	b.v.Regs().RFLAGS |= x86.FlagIF
	b.v.SetRegsDirty()
	return b
}

// runWhileSpinning runs f on another thread once the guest has gone round some
// times, and returns when f has.
func (b *box) runWhileSpinning(f func()) (wait func()) {
	start := b.get64(spinCounter)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for b.get64(spinCounter) < start+3 {
			runtime.Gosched()
		}
		f()
	}()
	return func() { <-done }
}

func TestKick(t *testing.T) {
	for _, cpl := range []int{0, 3} {
		t.Run(fmt.Sprintf("cpl%d", cpl), func(t *testing.T) {
			b := newSpinner(t, cpl)
			for range 20 {
				wait := b.runWhileSpinning(func() {
					if err := b.v.Kick(); err != nil {
						t.Error(err)
					}
				})
				for !b.v.Kicked() {
					if err := b.v.Run(&b.e); err != nil || b.e.Reason != ReasonInterrupted {
						t.Fatalf("exit %v, error %v; want interrupted", &b.e, err)
					}
				}
				wait()
				// The kick holds until it is cleared, and the guest stands still.
				n := b.get64(spinCounter)
				for range 3 {
					if err := b.v.Run(&b.e); err != nil || b.e.Reason != ReasonInterrupted {
						t.Fatalf("exit %v, error %v; want interrupted", &b.e, err)
					}
				}
				if got := b.get64(spinCounter); got != n {
					t.Fatalf("the guest ran from %d to %d while kicked", n, got)
				}
				b.v.ClearKick()
				if b.v.Kicked() {
					t.Fatal("kicked after ClearKick")
				}
			}
		})
	}
}

// A signal without a Kick interrupts one Run, and no retry hides it.
func TestRunSignal(t *testing.T) {
	b := newSpinner(t, 0)
	tid := unix.Gettid()
	var back atomic.Bool
	wait := b.runWhileSpinning(func() {
		// The guest may be between two slices of the emulator: again until
		// Run has returned.
		for !back.Load() {
			unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
			runtime.Gosched()
		}
	})
	err := b.v.Run(&b.e)
	back.Store(true)
	wait()
	if err != nil || b.e.Reason != ReasonInterrupted {
		t.Fatalf("exit %v, error %v; want interrupted", &b.e, err)
	}
	if b.v.Kicked() || b.v.Regs().RIP&^0xf != boxCode {
		t.Errorf("kicked %v, rip %#x; want not kicked and the registers of the guest", b.v.Kicked(), b.v.Regs().RIP)
	}
}

// TestBindNames: a thread is called after its vCPU, and no longer than it is its own.
func TestBindNames(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name := func() string {
		b, err := os.ReadFile("/proc/thread-self/comm")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	had := name()
	v := new(VCPU)
	v.id = 3
	v.Unbind()
	if got := name(); got != had {
		t.Errorf("%q behind the Unbind of a vCPU that no thread has", got)
	}
	v.Bind()
	if got := name(); got != "vcpu3\n" {
		t.Errorf("%q", got)
	}
	v.Unbind()
	if got := name(); got != had {
		t.Errorf("%q behind Unbind, want %q", got, had)
	}
}

func TestKickBeforeRun(t *testing.T) {
	b := newBox(t, []byte{0xf4}) // hlt
	b.v.Unbind()
	if err := b.v.Kick(); err != nil {
		t.Fatalf("kick without an owner: %v", err)
	}
	b.v.Bind()
	if err := b.v.Run(&b.e); err != nil || b.e.Reason != ReasonInterrupted {
		t.Fatalf("exit %v, error %v; want interrupted", &b.e, err)
	}
	b.v.ClearKick()
	b.want(ReasonHLT)
}

// Kick does no harm when the owner's thread has ended, and after Close.
func TestKickLate(t *testing.T) {
	b := newBox(t, []byte{0xf4})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// Without UnlockOSThread the thread ends with the goroutine.
		runtime.LockOSThread()
		b.v.Bind()
	}()
	<-ended
	if err := b.v.Kick(); err != nil {
		t.Errorf("kick after the owner ended: %v", err)
	}
	if err := b.v.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.v.Kick(); err != nil {
		t.Errorf("kick after Close: %v", err)
	}
}

// Kicks of several threads, while the vCPU runs, is asked to complete, and is
// closed, meet no race and no unmapped memory.
func TestKickRace(t *testing.T) {
	b := newSpinner(t, 0)
	var stop atomic.Bool
	done := make(chan struct{})
	for range 2 {
		go func() {
			for !stop.Load() {
				if err := b.v.Kick(); err != nil {
					t.Error(err)
				}
				runtime.Gosched()
			}
			done <- struct{}{}
		}()
	}
	for range 200 {
		b.v.RequestInterruptWindow(true)
		if err := b.v.Run(&b.e); err != nil {
			t.Fatal(err)
		}
		b.v.RequestInterruptWindow(false)
		if err := b.v.Complete(&b.e); err != nil || b.e.Reason != ReasonInterrupted {
			t.Fatalf("complete: %v, error %v", &b.e, err)
		}
		b.v.ClearKick()
	}
	if err := b.v.Close(); err != nil {
		t.Error(err)
	}
	stop.Store(true)
	<-done
	<-done
}
