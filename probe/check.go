package probe

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// place is where a probe is to go.
type place struct {
	addr  guest.GVA
	sym   guest.Symbol
	entry bool // the function's entry
}

// resolve finds out where p is (kprobes A.1, checks 1 to 4).
func (e *Engine) resolve(p *Kprobe) (place, *Error) {
	if p == nil || (p.Symbol == "") == (p.Addr == 0) {
		detail := "give one of them"
		if p != nil && p.Addr != 0 {
			detail = fmt.Sprintf("symbol %s and address %v; after a registration by symbol, clear Addr to register again", p.Symbol, p.Addr)
		}
		return place{}, newError(CodeBothOrNeither, "a probe needs either a symbol or an address", detail)
	}
	syms := e.target.Symbols()
	addr := p.Addr + guest.GVA(p.Offset)
	if p.Symbol != "" {
		sym, err := syms.Lookup(p.Symbol)
		if err != nil {
			var amb *guest.AmbiguousSymbolError
			if errors.As(err, &amb) {
				x := newError(CodeAmbiguous, fmt.Sprintf("symbol %q is ambiguous", p.Symbol), "give an address instead")
				x.Cause = err
				return place{}, x
			}
			return place{}, newError(CodeSymbolNotFound, fmt.Sprintf("there is no symbol %q", p.Symbol), "")
		}
		// Offset 0 is always the symbol's own: a label at the end of a section has no extent.
		if p.Offset != 0 && p.Offset >= sym.Size {
			return place{}, newError(CodeOffsetOutside, fmt.Sprintf("offset %#x is outside %s", p.Offset, p.Symbol),
				fmt.Sprintf("it has %#x bytes", sym.Size))
		}
		addr = sym.Addr + guest.GVA(p.Offset)
	}
	if e.InSlot(addr) {
		return place{}, newError(CodeBlacklisted, fmt.Sprintf("%v is the engine's own code", addr), "")
	}
	sym, ok := syms.Find(addr)
	if !ok {
		return place{}, newError(CodeNoSymbolAt, fmt.Sprintf("%v is in no function", addr), "")
	}
	off := addr - sym.Addr
	if (off == 0 || off == 4) && sym.Size > 4 && insn.HasEndbr64(syms.Code(sym.Addr, 4)) {
		return place{addr: sym.Addr + 4, sym: sym, entry: true}, nil
	}
	return place{addr: addr, sym: sym, entry: off == 0}, nil
}

// allowed checks that at may be probed at all (checks 8 and 9).
func (e *Engine) allowed(at place) *Error {
	syms := e.target.Symbols()
	if !syms.IsText(at.addr) {
		return newError(CodeNotText, fmt.Sprintf("%s is not code", at.sym.Name), "")
	}
	if why := e.forbiddenAt(at); why != "" {
		return newError(CodeBlacklisted, fmt.Sprintf("%s must not be probed", at.sym.Name), why)
	}
	level := 0
	if at.sym.User {
		level = 3
	}
	if why := e.can[level&1].NoBreakpoint; why != "" {
		return newError(CodeHostCannot, fmt.Sprintf("this host delivers no breakpoints at CPL%d", level), why)
	}
	return nil
}

// prepare makes the site for at: every check of its instruction, and its plan
// (checks 13 to 18). No text changes and no slot is made.
func (e *Engine) prepare(at place) (*site, *Error) {
	if err := e.boundary(at); err != nil {
		return nil, err
	}
	syms := e.target.Symbols()
	code := syms.Code(at.addr, insn.MaxLen)
	cpl := uint8(0)
	if at.sym.User {
		cpl = 3
	}
	plan := insn.Analyze(code, uint64(at.addr), insn.Options{CPL: cpl})
	n := int(plan.Inst.Len)
	if plan.Kind == insn.Refuse {
		return nil, refuse(plan, code[:max(n, min(1, len(code)))])
	}
	if plan.Kind == insn.InPlace && !e.can[cpl&1].InPlace {
		return nil, newError(CodeHostCannot, "the instruction cannot be moved, and this host cannot step in place",
			fmt.Sprintf("%v: bytes % x", plan.Reason, code[:n]))
	}
	if plan.Kind == insn.Emulate && plan.Fallback == insn.InPlace && at.sym.User && e.oneSpace && !e.can[1].InPlace {
		return nil, newError(CodeHostCannot, "the instruction cannot be moved, and this target cannot emulate it for user code",
			fmt.Sprintf("bytes % x", code[:n]))
	}
	st := &site{addr: at.addr, n: uint8(n), user: at.sym.User, plan: plan, symbol: at.sym.Name, start: at.sym.Addr, entry: at.entry}
	copy(st.orig[:], code[:n])
	var now [insn.MaxLen]byte
	if err := e.target.ReadMemory(0, at.addr, now[:n]); err != nil {
		x := newError(CodeUnreadable, "the guest's text is not mapped", fmt.Sprintf("at %v", at.addr))
		x.Cause = err
		return nil, x
	}
	e.Unpatch(at.addr, now[:n])
	st.pa, _ = e.pages.Translate(0, at.addr)
	if !bytes.Equal(now[:n], st.bytes()) {
		return nil, textError(st, &guest.TextMismatchError{Addr: at.addr, Want: st.bytes(), Got: bytes.Clone(now[:n])})
	}
	st.chain.Store(new(chain))
	return st, nil
}

// forbiddenAt returns why the function at at is blacklisted, or "".
func (e *Engine) forbiddenAt(at place) string {
	name := at.sym.Name
	if e.forbidden[name] {
		return "on the engine's blacklist"
	}
	// A part that the compiler split off or specialised is the function itself.
	if base, _, ok := strings.Cut(name, "."); ok && base != "" {
		if e.forbidden[base] {
			return fmt.Sprintf("a part of %s, which is on the engine's blacklist", base)
		}
		if sym, err := e.target.Symbols().Lookup(base); err == nil {
			if why := e.target.Symbols().Blacklisted(sym.Addr); why != "" {
				return fmt.Sprintf("a part of %s: %s", base, why)
			}
		}
	}
	if why := reserved(name); why != "" {
		return why
	}
	return e.target.Symbols().Blacklisted(at.addr)
}

// reserved returns why functions of this name are never probed, or "".
func reserved(name string) string {
	switch {
	case strings.HasPrefix(name, "gp_"):
		return "a stub through which traps reach the engine"
	case strings.HasPrefix(name, "__cfi_"), strings.HasPrefix(name, "__pfx_"):
		return "padding before a function, not code of its own" // kprobes A.1, check 9
	}
	return ""
}

// boundary refuses an address at which no instruction begins, or data is. Where
// no known path leads to, an instruction begins where the kernel finds one, by
// decoding the function from its first byte (check 14, and EILSEQ with it).
func (e *Engine) boundary(at place) *Error {
	f, why := e.functions().Of(at.sym)
	if f == nil {
		return newError(CodeUndecodable, why, "")
	}
	off := int(at.addr - at.sym.Addr)
	where := fmt.Sprintf("%s+%#x", at.sym.Name, off)
	begins, crossed := f.Boundary(off)
	bad, _, undecodable := f.Undecodable()
	switch {
	case !begins && undecodable && off >= bad:
		return newError(CodeUndecodable, fmt.Sprintf("the code of %s cannot be decoded", at.sym.Name),
			fmt.Sprintf("no instruction at %s+%#x", at.sym.Name, bad))
	case crossed:
		return newError(CodeNotBoundary, where+" is inside an instruction", "")
	}
	if what := f.Data(off, 1); what != "" {
		return newError(CodeData, where+" is data, not code", what)
	}
	if !begins {
		return newError(CodeNotBoundary, where+" is inside an instruction", "")
	}
	return nil
}
