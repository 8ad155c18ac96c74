package probe

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// Exit is an instruction that a function is left by.
type Exit struct {
	Addr guest.GVA
	Tail bool // a jump to another function, which returns in its place
}

// Exits returns the instructions by which calls of the function that sym names are
// left, ascending: its returns, and its jumps to other functions (tail calls), in its
// body and in what the compiler has moved out of it (gcc's and clang's NAME.cold). It
// fails with CodeExitsUnknown if the code does not show all of them. Reasons are:
//   - a jump whose target is unknown;
//   - a conditional jump to another function;
//   - an instruction that goes to code other than its caller's (iret, a far return or
//     jump, sysret, vmlaunch);
//   - a call of a place within the function, whose return does not leave it;
//   - an end that execution falls through;
//   - no exit at all.
func (fs *Functions) Exits(sym guest.Symbol) ([]Exit, error) { return fs.exits(sym, false) }

// exits is Exits. If calls is set, a call is assumed to return only where the
// function continues after it (compilers end functions with calls of abort and the
// like). A return that no known path leads to, as in an exception's handler, then
// counts as unknown.
func (fs *Functions) exits(sym guest.Symbol, calls bool) ([]Exit, error) {
	parts, err := fs.parts(sym)
	if err != nil {
		return nil, err
	}
	inside := func(a uint64) bool {
		return slices.ContainsFunc(parts, func(p part) bool { return a-uint64(p.sym.Addr) < p.sym.Size })
	}
	var out []Exit
	for _, p := range parts {
		for _, i := range p.f.Insts() {
			at := p.sym.Addr + guest.GVA(i.Off)
			if calls && !i.Reached && uint64(i.Off) < p.sym.Size && i.Class() == x86.ClassRet {
				return nil, unknownExitsError(sym, p, i.Off, "no known path leads to this return")
			}
			if !i.Reached || uint64(i.Off) >= p.sym.Size {
				continue
			}
			leaves, tail := false, false
			switch i.Class() {
			case x86.ClassRet:
				leaves = true
			case x86.ClassJump, x86.ClassCondJump, x86.ClassLoop:
				t, ok := i.Target(uint64(at))
				leaves, tail = ok && !inside(t), true
				if leaves && i.Class() != x86.ClassJump {
					return nil, unknownExitsError(sym, p, i.Off, "a conditional jump leaves it")
				}
			case x86.ClassCall:
				if t, ok := i.Target(uint64(at)); ok && inside(t) && t != uint64(sym.Addr) {
					return nil, unknownExitsError(sym, p, i.Off, "it calls a place within itself, and which of its returns come from there is not known")
				}
			case x86.ClassIRet, x86.ClassTransfer, x86.ClassVMEntry:
				return nil, unknownExitsError(sym, p, i.Off, fmt.Sprintf("this goes to other code (%s), and is no return", i.Class()))
			case x86.ClassFar:
				if i.Opcode != 0xff || i.Reg() != 3 { // a far call comes back
					return nil, unknownExitsError(sym, p, i.Off, "this goes to other code (far return or jump), and is no return")
				}
			}
			switch {
			case leaves:
				out = append(out, Exit{at, tail})
			case calls && (i.Class() == x86.ClassCall || i.Class() == x86.ClassCallInd):
			case i.Falls() && uint64(i.Off)+uint64(i.Len) >= p.sym.Size:
				return nil, unknownExitsError(sym, p, i.Off, "what follows belongs to another symbol")
			}
		}
		for _, j := range p.f.IndirectJumps() {
			if j.Targets == nil && uint64(j.Off) < p.sym.Size {
				return nil, unknownExitsError(sym, p, j.Off, "where this jump leads is not known")
			}
		}
	}
	if len(out) == 0 {
		return nil, newError(CodeExitsUnknown, sym.Name+" does not return", "")
	}
	slices.SortFunc(out, func(a, b Exit) int { return int(int64(a.Addr - b.Addr)) })
	return out, nil
}

// part is a piece of a function's code with a symbol of its own.
type part struct {
	sym guest.Symbol
	f   *flow.Func
}

// parts analyzes the function that sym names, and its cold pieces.
func (fs *Functions) parts(sym guest.Symbol) ([]part, error) {
	syms := []guest.Symbol{sym}
	if !sym.Addr.Canonical() { // a symbol of a file, which the image's own do not include
		if s, err := fs.syms.Lookup(sym.Name + ".cold"); err == nil {
			syms = append(syms, s)
		}
	} else if img, ok := fs.syms.(Image); ok {
		for _, s := range img.Symbols() {
			if s.Kind == guest.SymFunc && strings.HasPrefix(s.Name, sym.Name+".cold") {
				syms = append(syms, s)
			}
		}
	}
	var out []part
	for _, s := range syms {
		f, why := fs.Analyze(s)
		if f == nil {
			return nil, newError(CodeExitsUnknown, "nothing is known of "+s.Name, why)
		}
		if f.Size() > flow.MaxCode {
			return nil, newError(CodeExitsUnknown, s.Name+" is too long to be looked through", fmt.Sprintf("%d bytes, at most %d", f.Size(), flow.MaxCode))
		}
		out = append(out, part{s, f})
	}
	return out, nil
}

func unknownExitsError(sym guest.Symbol, p part, off int, why string) *Error {
	if sym.Addr.Canonical() {
		why += "; a return probe without this option needs none"
	}
	return newError(CodeExitsUnknown, fmt.Sprintf("the exits of %s are not all known", sym.Name), fmt.Sprintf("%s+%#x: %s", p.sym.Name, off, why))
}
