package probetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// testCase is one case of the suite: a guest of its own, and the assertions
// about it.
type testCase struct {
	name  string
	cpus  int // 0 = 1
	needs []Capability
	run   func(v *env)
}

// Run runs the conformance suite: every case on a guest of its own that boot
// starts. After each case the guest's text must be byte for byte the image's.
func Run(t *testing.T, boot Boot) {
	var all []testCase
	for _, part := range [][]testCase{kunitCases, errnoCases, lifeCases, orderCases, handlerCases, equivalenceCases, faultCases, userCases, returnCases, activationCases, jprobeCases, optimizedCases, textCases, stormCases, loadCases} {
		all = append(all, part...)
	}
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) { runCase(t, boot, c) })
	}
}

func runCase(t *testing.T, boot Boot, c testCase) {
	// Cases that want it run the optimizer themselves.
	h := boot(t, Options{CPUs: max(c.cpus, 1), Probe: probe.Options{OptimizeDelay: -1}})
	v := &env{T: t, h: h, e: h.Engine()}
	defer func() {
		if err := h.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	for _, need := range c.needs {
		if !h.Can(need) {
			t.Logf("LEFT OUT: this guest lacks capability %d", need)
			return
		}
	}
	c.run(v)
	if list := v.e.List(); len(list) != 0 {
		t.Errorf("the case has not detached %d probes, first: %v", len(list), list[0])
	}
	v.checkText()
}

// env is the environment of a case.
type env struct {
	*testing.T
	h Harness
	e *probe.Engine
}

// addr returns the address of a symbol.
func (v *env) addr(name string) guest.GVA {
	v.Helper()
	s, err := v.h.Symbol(name)
	if err != nil {
		v.Fatalf("symbol %s: %v", name, err)
	}
	return s.Addr
}

// call runs a function on vCPU 0.
func (v *env) call(name string, args ...uint64) uint64 {
	v.Helper()
	r, err := v.h.Call(0, v.addr(name), args...)
	if err != nil {
		v.Fatalf("call %s%v: %v", name, args, err)
	}
	return r
}

// load and store access a variable of 8 bytes.
func (v *env) load(name string) uint64 {
	v.Helper()
	return binary.LittleEndian.Uint64(v.bytes(v.addr(name), 8))
}

func (v *env) store(name string, x uint64) {
	v.Helper()
	if err := v.h.Write(v.addr(name), binary.LittleEndian.AppendUint64(nil, x)); err != nil {
		v.Fatalf("write %s: %v", name, err)
	}
}

// bytes reads guest memory.
func (v *env) bytes(addr guest.GVA, n int) []byte {
	v.Helper()
	p := make([]byte, n)
	if err := v.h.Read(addr, p); err != nil {
		v.Fatalf("read %d bytes at %v: %v", n, addr, err)
	}
	return p
}

// register puts probes on or ends the test.
func (v *env) register(ps ...*probe.Kprobe) {
	v.Helper()
	if err := v.e.Register(probe.Probes(ps)...); err != nil {
		v.Fatalf("register: %v", err)
	}
}

// unregister removes probes or fails the test.
func (v *env) unregister(ps ...*probe.Kprobe) {
	v.Helper()
	if err := v.e.Unregister(ps...); err != nil {
		v.Errorf("unregister: %v", err)
	}
}

// stats returns the counts of a probe, and checks that they close.
func (v *env) stats(p *probe.Kprobe) probe.Stats {
	v.Helper()
	total, byCPU, ok := v.e.Stats(p)
	if !ok {
		v.Fatalf("no counts for probe %q", p.Name)
	}
	for i, s := range append(byCPU, total) {
		if s.Hits != s.Handled+s.Filtered+s.Missed {
			v.Errorf("probe %q: counts %d do not close: %+v", p.Name, i, s)
		}
	}
	return total
}

// equal compares got with want.
func equal[T comparable](v *env, what string, got, want T) {
	v.Helper()
	if got != want {
		v.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// checkRefused checks that err is a refusal with this code and errno.
func (v *env) checkRefused(what string, err error, code probe.Code, errno syscall.Errno) {
	v.Helper()
	var e *probe.Error
	if !errors.As(err, &e) {
		v.Errorf("%s: got %v, want %s", what, err, code)
		return
	}
	if e.Code != code || e.Errno != errno || !errors.Is(err, errno) {
		v.Errorf("%s: got %s (%s), want %s (%s): %v", what, e.Code, probe.ErrnoName(e.Errno), code, probe.ErrnoName(errno), err)
	}
}

// index checks which probe of a batch was rejected.
func (v *env) index(what string, err error, want int) {
	v.Helper()
	var e *probe.Error
	if !errors.As(err, &e) || e.Index != want {
		v.Errorf("%s: got index of %v, want %d", what, err, want)
	}
}

// checkArmed checks whether the instruction at addr has an int3 over it, and is
// otherwise the image's.
func (v *env) checkArmed(what string, addr guest.GVA, want bool) {
	v.Helper()
	in, err := x86.Decode(Image().Code(addr, x86.MaxLen))
	if err != nil {
		v.Fatalf("%s: decode at %v: %v", what, addr, err)
	}
	orig := in.Bytes()
	got := v.bytes(addr, len(orig))
	expect := bytes.Clone(orig)
	if want {
		expect[0] = x86.Int3
	}
	if !bytes.Equal(got, expect) {
		v.Errorf("%s: text at %v is % x, want % x", what, addr, got, expect)
	}
}

// checkText compares all text with the image.
func (v *env) checkText() {
	v.Helper()
	for _, s := range Image().Segments {
		if !s.X {
			continue
		}
		got := v.bytes(s.VAddr, len(s.Data))
		for i := range got {
			if got[i] != s.Data[i] {
				v.Errorf("text at %v is %02x, the image has %02x", s.VAddr+guest.GVA(i), got[i], s.Data[i])
				return
			}
		}
	}
}

// offsets returns the offsets of all instructions of a function.
func (v *env) offsets(name string) []uint64 {
	v.Helper()
	s, err := v.h.Symbol(name)
	if err != nil {
		v.Fatalf("symbol %s: %v", name, err)
	}
	var out []uint64
	for off := uint64(0); off < s.Size; {
		in, err := x86.Decode(Image().Code(s.Addr+guest.GVA(off), x86.MaxLen))
		if err != nil {
			v.Fatalf("decode %s+%#x: %v", name, off, err)
		}
		out = append(out, off)
		off += uint64(in.Len)
	}
	return out
}

// nop is a pre handler that does nothing.
func nop(*probe.Context) int { return 0 }
