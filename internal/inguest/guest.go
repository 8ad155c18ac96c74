package inguest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

const (
	ramSize   = 4 << 20
	arenaSize = 48 << 20 // of the memory that is shared with the guest
	codeChunk = 1 << 20  // the least executable memory that is allocated at a time

	// runTimeout is how long one run may take. The slowest host emulates
	// kernel-mode code at a microsecond per instruction.
	runTimeout = 60 * time.Second

	// How often user code's answer is looked for at once, and how long to wait
	// before each further look.
	spins     = 4096
	pollPause = 20 * time.Microsecond
)

// Options describe the guest.
type Options struct {
	CPL     int          // privilege that programs run at: 0 or 3
	KVMPath string       // the KVM device; "" means /dev/kvm
	Host    *host.Report // result of calibration; nil: calibrate
}

// Guest is a bpf.Runner: a guest of one vCPU that only runs compiled programs,
// with their blocks, contexts and maps in memory that it shares with the host.
// It does not handle faults: a fault crashes the guest. The error then describes
// the crash, and the Guest cannot be used any more. One goroutine uses it.
type Guest struct {
	m     *machine.Machine
	cpl   int
	enter guest.GVA // at CPL0: the function that enters programs
	box   []byte
	boxAt guest.GVA
	arena bpf.Area
	used  int

	code     guest.GVA // executable memory, of codeSize bytes
	codeSize int
	codeUsed int
}

var _ bpf.Runner = (*Guest)(nil)

// New boots a guest. Close it.
func New(o Options) (_ *Guest, err error) {
	if o.CPL != 0 && o.CPL != 3 {
		panic("BUG: there are privileges 0 and 3")
	}
	img, enter, err := newImage()
	if err != nil {
		return nil, err
	}
	g := &Guest{cpl: o.CPL, enter: enter}
	g.m, err = machine.New(machine.Config{Image: img, Memory: ramSize, Cmdline: fmt.Sprint(o.CPL), Tick: -1, KVMPath: o.KVMPath, Host: o.Host})
	if err != nil {
		return nil, fmt.Errorf("guest for programs: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("guest for programs: %w", err), g.Close())
		}
	}()
	if g.boxAt, g.box, err = g.m.AllocShared(boxSize, g.cpl == 3); err != nil {
		return nil, err
	}
	at, b, err := g.m.AllocShared(arenaSize, g.cpl == 3)
	if err != nil {
		return nil, err
	}
	g.arena = bpf.Area{Bytes: b, Addr: uint64(at)}
	if err := g.m.Target().WriteMemory(0, dataVA, binary.LittleEndian.AppendUint64(nil, uint64(g.boxAt))); err != nil {
		return nil, err
	}
	return g, g.m.Resume()
}

// Close ends the guest. A second call does nothing.
func (g *Guest) Close() error { return g.m.Close(context.Background()) }

// Alloc implements bpf.Memory.
func (g *Guest) Alloc(size int) (bpf.Area, error) {
	const align = 64
	if size < 0 || size > len(g.arena.Bytes)-g.used {
		return bpf.Area{}, fmt.Errorf("%d bytes: the guest has %d left", size, len(g.arena.Bytes)-g.used)
	}
	at := g.used
	g.used = min((at+size+align-1)&^(align-1), len(g.arena.Bytes))
	b := g.arena.Bytes[at : at+size : at+size]
	clear(b)
	return bpf.Area{Bytes: b, Addr: g.arena.Addr + uint64(at)}, nil
}

// Free implements bpf.Memory. It does nothing, because Reset frees the memory.
func (g *Guest) Free(bpf.Area) {}

// Reset implements bpf.Runner.
func (g *Guest) Reset() { g.used, g.codeUsed = 0, 0 }

// Load implements bpf.Runner.
func (g *Guest) Load(code []byte) (func(ctx, block, length uint64) (uint64, error), error) {
	if len(code) > g.codeSize-g.codeUsed {
		near := guest.GVA(kernelVA)
		if g.cpl == 3 {
			near = userVA
		}
		size := max(codeChunk, len(code))
		at, err := g.m.Target().AllocExec(near, size)
		if err != nil {
			return nil, err
		}
		g.code, g.codeSize, g.codeUsed = at, size, 0
	}
	at := g.code + guest.GVA(g.codeUsed)
	if err := g.m.Target().WriteExec(at, code); err != nil {
		return nil, err
	}
	g.codeUsed += (len(code) + 15) &^ 15
	g.codeUsed = min(g.codeUsed, g.codeSize)
	return func(ctx, block, length uint64) (uint64, error) { return g.run(at, ctx, block, length) }, nil
}

// run calls the code at an address once.
func (g *Guest) run(at guest.GVA, ctx, block, length uint64) (uint64, error) {
	le := binary.LittleEndian
	var in [16]uint64
	for r := range in {
		in[r] = 0xdead0000_00000000 | uint64(r)
	}
	in[x86.RDI], in[x86.RSI], in[x86.RDX] = ctx, block, length
	for r, v := range in {
		le.PutUint64(g.box[boxIn+8*r:], v)
	}
	le.PutUint64(g.box[boxTarget:], uint64(at))
	call := g.callUser
	if g.cpl == 0 {
		call = g.callKernel
	}
	if err := call(); err != nil {
		return 0, err
	}
	for r, want := range in {
		got := le.Uint64(g.box[boxOut+8*r:])
		if reg := x86.Reg64(r); reg != x86.RAX && reg != x86.RSP && got != want {
			return 0, fmt.Errorf("run program in the guest: register %d is %#x afterwards, was %#x", r, got, want)
		}
	}
	return le.Uint64(g.box[boxOut:]), nil
}

// callKernel has the vCPU, at its safe point, enter the target.
func (g *Guest) callKernel() error {
	ctx, cancel := context.WithTimeout(context.Background(), runTimeout)
	defer cancel()
	if _, err := g.m.Call(ctx, g.enter, uint64(g.boxAt)); err != nil {
		return errors.Join(fmt.Errorf("run program in the guest: %w", err), g.crashError())
	}
	return nil
}

// callUser posts a request to the guest's user code, which polls for it, and
// polls for the answer.
func (g *Guest) callUser() error {
	le := binary.LittleEndian
	number := le.Uint64(g.box[boxRequest:]) + 1
	le.PutUint64(g.box[boxRequest:], number)
	deadline := time.Time{}
	for i := 1; le.Uint64(g.box[boxDone:]) != number; i++ {
		if i < spins && runtime.NumCPU() > 1 {
			runtime.Gosched()
			continue
		}
		time.Sleep(pollPause) // the vCPU may be waiting for this very processor
		if err := g.crashError(); err != nil {
			return fmt.Errorf("run program in the guest: %w", err)
		}
		switch now := time.Now(); {
		case deadline.IsZero():
			deadline = now.Add(runTimeout)
		case now.After(deadline):
			return fmt.Errorf("run program in the guest: not done after %v", runTimeout)
		}
	}
	return nil
}

// crashError returns how the guest ended, or nil.
func (g *Guest) crashError() error {
	switch s := g.m.State(); {
	case s.Crash != nil:
		return fmt.Errorf("the guest crashed: %s", s.Crash.Text)
	case s.Phase != machine.PhaseRunning:
		return fmt.Errorf("the guest is %s", s.Phase)
	}
	return nil
}
