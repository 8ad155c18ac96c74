package probetest

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// StackBase is the base of the stacks of a Still guest's vCPUs: Hit starts vCPU i with RSP = StackBase + 4096*(i+1).
const StackBase = stackBase

// Deliver passes a trap of a Still guest to the engine. It waits while the world is stopped.
func (f *Fake) Deliver(cpu int, s probe.State, t probe.Trap) probe.Verdict {
	f.gate.RLock()
	defer f.gate.RUnlock()
	return f.engine.Hit(cpu, s, t)
}

// endbr64 may be a function's first instruction. Probes at offset 0 are placed after it.
const endbr64 = "\xf3\x0f\x1e\xfa"

// Hit runs vCPU cpu of a Still guest at a symbol of the image, and reports whether there was a probe. set, if not nil, sets registers first.
func (f *Fake) Hit(cpu int, symbol string, offset uint64, set func(*probe.Regs)) (bool, error) {
	sym, err := f.img.Lookup(symbol)
	if err != nil {
		return false, err
	}
	f.gate.RLock()
	defer f.gate.RUnlock()
	if offset == 0 && string(f.img.Code(sym.Addr, len(endbr64))) == endbr64 {
		offset = uint64(len(endbr64))
	}
	if text, err := f.BytesAt(sym.Addr+guest.GVA(offset), 1); err != nil || text[0] != 0xcc {
		return false, nil // no int3
	}
	regs := &probe.Regs{RIP: uint64(sym.Addr) + offset, RSP: uint64(StackBase) + uint64(cpu+1)<<12, RFLAGS: 0x202}
	if set != nil {
		set(regs)
	}
	s := probe.State{Regs: regs}
	if sym.User {
		s.CPL = 3
	}
	return f.engine.Hit(cpu, s, probe.Trap{Kind: probe.TrapBreakpoint}).Action == probe.Resume, nil
}

// BytesAt returns the n bytes of a Still guest's memory at addr. It is not a copy.
func (f *Fake) BytesAt(addr guest.GVA, n int) ([]byte, error) {
	return f.mem.span(addr, n, mode{poke: true})
}

// Reload resets the guest to its image.
func (f *Fake) Reload() error { return f.Reset(f.img) }
