package gdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// fakeTarget is two vCPUs that execute one byte of memory as one instruction: what is at the
// instruction pointer has no meaning, a breakpoint stops in front of it.
type fakeTarget struct {
	regs    [2]Registers
	base    uint64
	mem     []byte
	breaks  []Breakpoint
	program Program

	actions  []Action
	attached bool
	paused   bool  // by Detach
	next     *Stop // what Wait returns at once
	refuses  error // of Resume
	also     map[int]Stop
	said     []string
	asked    int // how often for all registers
}

var errNoMemory = errors.New("nothing is mapped there")

func newFake() *fakeTarget {
	f := &fakeTarget{base: 0x10000, mem: make([]byte, 2*pageSize)}
	for i := range f.mem {
		f.mem[i] = byte(i*7 + i>>8)
	}
	for cpu := range f.regs {
		r := &f.regs[cpu]
		for i := range r.General {
			r.General[i] = uint64(0x1111111111111111*(i%16)) + uint64(cpu)
		}
		r.RIP = f.base + 0x100*uint64(cpu)
		r.Flags, r.Vector = 2, AVX512PKU
	}
	return f
}

func (f *fakeTarget) Attach() error { f.attached = true; return nil }

func (f *fakeTarget) Detach(pause bool) error {
	f.attached, f.paused, f.breaks = false, pause, nil
	return nil
}

func (f *fakeTarget) CPUs() int { return len(f.regs) }

func (f *fakeTarget) Describe(cpu int) string { return fmt.Sprintf("paused <%d>", cpu) }

func (f *fakeTarget) Registers(cpu int, r *Registers, all bool) error {
	if *r = f.regs[cpu]; all {
		f.asked++
	}
	return nil
}

func (f *fakeTarget) SetRegisters(cpu int, r *Registers) error { f.regs[cpu] = *r; return nil }

func (f *fakeTarget) bytesAt(addr uint64, n int) ([]byte, error) {
	if addr < f.base || addr-f.base > uint64(len(f.mem)) || uint64(n) > uint64(len(f.mem))-(addr-f.base) {
		return nil, errNoMemory
	}
	return f.mem[addr-f.base:][:n], nil
}

func (f *fakeTarget) Read(_ int, addr uint64, p []byte) error {
	b, err := f.bytesAt(addr, len(p))
	copy(p, b)
	return err
}

func (f *fakeTarget) Write(_ int, addr uint64, p []byte) error {
	b, err := f.bytesAt(addr, len(p))
	copy(b, p)
	return err
}

func (f *fakeTarget) Insert(b Breakpoint) error {
	if b.Kind == WatchRead {
		return ErrUnsupported
	}
	if !slices.Contains(f.breaks, b) {
		f.breaks = append(f.breaks, b)
	}
	return nil
}

func (f *fakeTarget) Remove(b Breakpoint) error {
	f.breaks = slices.DeleteFunc(f.breaks, func(o Breakpoint) bool { return o == b })
	return nil
}

func (f *fakeTarget) Resume(actions []Action) error {
	f.actions = slices.Clone(actions)
	return f.refuses
}

// Wait executes: 64 instructions at most, then it waits for the interrupt.
func (f *fakeTarget) Wait(ctx context.Context, soon <-chan struct{}) (Stop, error) {
	if f.next != nil {
		return *f.next, nil
	}
	for range 64 {
		for cpu, a := range f.actions {
			if a == Hold {
				continue
			}
			f.regs[cpu].RIP++
			if a == Step {
				return Stop{Why: Stepped, CPU: cpu}, nil
			}
			for _, b := range f.breaks {
				if b.Kind <= Hardware && b.Addr == f.regs[cpu].RIP {
					return Stop{Why: Breaking, CPU: cpu, Kind: b.Kind}, nil
				}
			}
		}
	}
	f.actions = nil
	if soon != nil {
		<-soon
		return Stop{Why: StillRunning}, nil
	}
	<-ctx.Done()
	return Stop{CPU: 0}, nil
}

func (f *fakeTarget) RecheckStop(was Stop) Stop { return was }

func (f *fakeTarget) StopOf(cpu int) (Stop, bool) {
	stop, ok := f.also[cpu]
	delete(f.also, cpu)
	return stop, ok
}

func (f *fakeTarget) Monitor(ctx context.Context, line string, w io.Writer) error {
	f.said = append(f.said, line)
	if line == "wait" {
		<-ctx.Done()
		return ctx.Err()
	}
	if line == "fail" {
		return errors.New("there is no such thing")
	}
	_, err := fmt.Fprint(w, strings.Repeat("said ", 1+len(line)/8*1000), line, "\n")
	return err
}

func (f *fakeTarget) Program() Program { return f.program }

var _ Target = &fakeTarget{}

// equalMem reports whether the memory at addr is b.
func (f *fakeTarget) equalMem(addr uint64, b []byte) bool {
	got, err := f.bytesAt(addr, len(b))
	return err == nil && bytes.Equal(got, b)
}
