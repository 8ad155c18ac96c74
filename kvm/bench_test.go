package kvm

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// outLoop is a long run of `out %al,$0xe9`, and at its end a jump back: nearly
// nothing but exits.
func outLoop() []byte {
	const n = 4096
	code := bytes.Repeat([]byte{0xe6, 0xe9}, n)
	code = append(code, 0xe9) // jmp rel32
	return binary.LittleEndian.AppendUint32(code, 1<<32-(2*n+5))
}

// runOnce is one exit, or an interruption by the scheduler.
func (b *box) runOnce() {
	if err := b.v.Run(&b.e); err != nil {
		b.tb.Fatal(err)
	}
}

// The hit path allocates nothing: neither Run, in either way and for every kind
// of exit of these guests, nor what a trap handler calls between two of them.
func TestRunAllocations(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, outLoop(), opts...)
		for _, tt := range []struct {
			name string
			f    func()
		}{
			{"run", b.runOnce},
			{"run with changed registers", func() {
				b.v.Regs().RBX++
				b.v.SetRegsDirty()
				b.v.SetSregsDirty()
				b.runOnce()
			}},
			{"complete", func() {
				if err := b.v.Complete(&b.e); err != nil {
					t.Error(err)
				}
			}},
			{"kick", func() {
				if err := b.v.Kick(); err != nil {
					t.Error(err)
				}
				b.v.ClearKick()
			}},
			{"guest debug", func() {
				if err := b.v.SetGuestDebug(GuestDebug{}); err != nil {
					t.Error(err)
				}
			}},
			{"interrupt window", func() {
				b.v.RequestInterruptWindow(true)
				b.v.RequestInterruptWindow(false)
				b.v.InterruptReady()
			}},
			{"interrupt", func() {
				b.v.page.readyForIntr, b.v.queued = 1, false
				b.v.Regs().RFLAGS |= x86.FlagIF
				if err := b.v.Interrupt(0x20); err != nil {
					t.Error(err)
				}
			}},
			{"events", func() {
				var e Events
				if err := b.v.GetEvents(&e); err != nil {
					t.Error(err)
				}
				e.I.Inject = 0
				if err := b.v.SetEvents(&e); err != nil {
					t.Error(err)
				}
			}},
			{"exception", func() {
				if err := b.v.InjectException(x86.VectorUD, false, 0, 0); err != nil {
					t.Error(err)
				}
				b.runOnce()
				b.v.Regs().RIP, b.v.Regs().RSP = boxCode, boxTop
				b.v.SetRegsDirty()
			}},
		} {
			if n := testing.AllocsPerRun(100, tt.f); n != 0 {
				t.Errorf("%s: %v allocations, want 0", tt.name, n)
			}
		}
	})
}

// BenchmarkExit is the round trip of one exit: out at CPL 0, back to this
// program, and into the guest again.
func BenchmarkExit(b *testing.B) {
	for _, bb := range []struct {
		name string
		opts []vcpuOption
	}{{"sync", nil}, {"getset", []vcpuOption{withoutSyncRegs()}}} {
		b.Run(bb.name, func(b *testing.B) {
			x := newBox(b, outLoop(), bb.opts...)
			b.ReportAllocs()
			for b.Loop() {
				x.runOnce()
			}
		})
		b.Run(bb.name+"/dirty", func(b *testing.B) {
			x := newBox(b, outLoop(), bb.opts...)
			b.ReportAllocs()
			for b.Loop() {
				x.v.SetRegsDirty()
				x.runOnce()
			}
		})
	}
}

// BenchmarkInterrupted is KVM_RUN without the guest: entry and return of the
// ioctl, and the copy of the registers.
func BenchmarkInterrupted(b *testing.B) {
	x := newBox(b, outLoop())
	if err := x.v.Kick(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		x.runOnce()
	}
}

// BenchmarkGetRegs is what the shared page saves for each access.
func BenchmarkGetRegs(b *testing.B) {
	x := newBox(b, outLoop())
	var r Regs
	b.ReportAllocs()
	for b.Loop() {
		if err := x.v.getRegs(&r); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSetGuestDebug is one switch of stepping on or off.
func BenchmarkSetGuestDebug(b *testing.B) {
	x := newBox(b, outLoop())
	b.ReportAllocs()
	for b.Loop() {
		if err := x.v.SetGuestDebug(GuestDebug{Control: DebugEnable | DebugUseSWBP}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecode is this package's own part of an exit.
func BenchmarkDecode(b *testing.B) {
	page := runPage{exitReason: uint32(ReasonIO), exit: bytesAt{32: uint8(1), 33: uint8(1), 34: uint16(0xe9), 36: uint32(1), 40: uint64(4096)}.union()}
	mapping := make([]byte, 8192)
	var e Exit
	b.ReportAllocs()
	for b.Loop() {
		if err := e.decode(&page, mapping); err != nil {
			b.Fatal(err)
		}
	}
}
