package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// Offsets in struct bench_mailbox (guest/builtin/src/include/abi.h).
const (
	mailRequest = 0
	mailDone    = 8
	mailFn      = 16
	mailN       = 24
	mailA       = 32
	mailTicks   = 48
	mailSize    = 64
)

// Names in the built-in guest.
const (
	symKernelLoop = "bench_calls"        // CPL0: calls a function n times, returns TSC ticks
	symMailbox    = "user_bench_mailbox" // CPL3: the same on request
	symKernelFn   = "flags_chain"
	symUserFn     = "user_hot"
	symHotLoop    = "user_hot_loop"  // CPL3: calls user_hot, and counts the calls of its vCPU
	symHotCalls   = "user_hot_calls" // the counter of each vCPU
)

// benchGuest is the built-in guest, idle except for calls on request.
type benchGuest struct {
	m   *machine.Machine
	mhz float64 // TSC ticks per microsecond
}

// bootGuest boots it on one vCPU and returns how long KVM's set-up and the
// guest's first console line took.
func bootGuest(ctx context.Context) (_ *benchGuest, kvmTime, guestTime time.Duration, err error) {
	start := time.Now()
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		return nil, 0, 0, err
	}
	m, err := machine.New(machine.Config{Image: img, VCPUs: 1, Cmdline: "bench", TimeHits: true,
		Probe: probe.Options{OptimizeDelay: -1}}) // each kind is measured by itself
	if err != nil {
		return nil, 0, 0, err
	}
	kvmTime = time.Since(start)
	defer func() {
		if err != nil {
			m.Close(context.WithoutCancel(ctx))
		}
	}()
	sub, _ := m.Console().Subscribe(16)
	defer sub.Close()
	booted := time.Now()
	if err := m.Resume(); err != nil {
		return nil, 0, 0, err
	}
	select {
	case line := <-sub.C():
		guestTime = line.Time.Sub(booted)
	case <-ctx.Done():
		return nil, 0, 0, fmt.Errorf("the guest said nothing: %w", ctx.Err())
	}
	clock, err := m.Clock(func() int64 { return 0 })
	if err != nil {
		return nil, 0, 0, err
	}
	return &benchGuest{m: m, mhz: float64(clock.KHz) / 1000}, kvmTime, guestTime, nil
}

func (g *benchGuest) close(ctx context.Context) error { return g.m.Close(context.WithoutCancel(ctx)) }

// fn returns the function that is called at privilege level cpl.
func (g *benchGuest) fn(cpl int) (guest.Symbol, error) {
	if cpl == 0 {
		return g.m.Image().Lookup(symKernelFn)
	}
	return g.m.Image().Lookup(symUserFn)
}

// calls has the guest call fn n times and returns nanoseconds per call, by the
// guest's own time stamp counter.
func (g *benchGuest) calls(ctx context.Context, cpl int, fn guest.GVA, n uint64) (float64, error) {
	var ticks uint64
	var err error
	if cpl == 0 {
		ticks, err = g.kernelCalls(ctx, fn, n)
	} else {
		ticks, err = g.userCalls(ctx, fn, n)
	}
	if err != nil {
		return 0, err
	}
	return float64(ticks) / g.mhz * 1000 / float64(n), nil
}

func (g *benchGuest) kernelCalls(ctx context.Context, fn guest.GVA, n uint64) (uint64, error) {
	loop, err := g.m.Image().Lookup(symKernelLoop)
	if err != nil {
		return 0, err
	}
	return g.m.Call(ctx, loop.Addr, uint64(fn), n, 1, 2)
}

func (g *benchGuest) userCalls(ctx context.Context, fn guest.GVA, n uint64) (uint64, error) {
	box, err := g.m.Image().Lookup(symMailbox)
	if err != nil {
		return 0, err
	}
	// Everything except the request first: the guest polls only the request.
	var b [mailTicks]byte
	if err := g.m.Peek(box.Addr, b[:]); err != nil {
		return 0, err
	}
	le := binary.LittleEndian
	request := le.Uint64(b[mailRequest:]) + 1
	le.PutUint64(b[mailFn:], uint64(fn))
	le.PutUint64(b[mailN:], n)
	le.PutUint64(b[mailA:], 1)
	le.PutUint64(b[mailA+8:], 2)
	if err := g.m.Target().WriteMemory(0, box.Addr+mailFn, b[mailFn:]); err != nil {
		return 0, err
	}
	le.PutUint64(b[mailRequest:], request)
	if err := g.m.Target().WriteMemory(0, box.Addr, b[mailRequest:mailDone]); err != nil {
		return 0, err
	}
	for {
		var got [mailTicks + 8]byte
		if err := g.m.Peek(box.Addr, got[:]); err != nil {
			return 0, err
		}
		if le.Uint64(got[mailDone:]) == request {
			return le.Uint64(got[mailTicks:]), nil
		}
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("the guest's user program does not answer: %w", err)
		}
		if p := g.m.State().Phase; p != machine.PhaseRunning {
			return 0, fmt.Errorf("the guest is %s in the middle of a measurement", p)
		}
		runtime.Gosched()
	}
}
