package probe

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// places knows where in the guest's text a probe can be, and makes the sites and
// slots. It is guarded by Engine.mu.
type places struct {
	*core
	forbidden map[string]bool // functions, by the API; written with view held as well
	funcs     *Functions      // of the guest's current image; nil: not analyzed yet
	slots     map[slotKey]*slot

	// Analyses of pieces of a kernel's code, valid as long as the pieces exist.
	looks map[any]*flow.Index
	scans func(guest.ID) *flow.Scans // Options.Scans
}

// forget discards everything that depends on the guest's memory and image.
func (p *places) forget() {
	if p.funcs != nil {
		p.looks = p.funcs.looks
	}
	p.funcs = nil
	p.slots = map[slotKey]*slot{}
}

// functions returns the analysis of the guest's image.
func (p *places) functions() *Functions {
	if p.funcs == nil {
		p.funcs = NewFunctions(p.target.Symbols())
		p.funcs.looks, p.looks = p.looks, nil
		p.funcs.scans = p.scans
	}
	return p.funcs
}

// forgetKnown frees the results of analyses about single places, after the registration for which they
// were kept.
func (p *places) forgetKnown() {
	if p.funcs != nil {
		p.funcs.known = nil
	}
}

// place is the place for a probe.
type place struct {
	addr  guest.GVA
	sym   guest.Symbol
	entry bool      // the function's entry
	plain bool      // see Functions.IsPlainEntry
	head  guest.GVA // the address that a hit of the entry is reported at, if this is the place for probes on the entry; else addr
}

// reportedAddr returns the address that hits at the place are reported at.
func (at place) reportedAddr() guest.GVA {
	if at.entry {
		return at.head
	}
	return at.addr
}

// resolve determines the place for w (kprobes A.1, checks 1 to 4).
func (p *places) resolve(w where) (place, *Error) {
	if (w.symbol == "") == (w.addr == 0) {
		detail := "give one of them"
		if w.addr != 0 {
			detail = fmt.Sprintf("symbol %s and address %v; after a registration by symbol, clear Addr to register again", w.symbol, w.addr)
		}
		return place{}, newError(CodeBothOrNeither, "a probe needs either a symbol or an address", detail)
	}
	addr := w.addr + guest.GVA(w.offset)
	if w.symbol != "" {
		sym, err := p.symbol("symbol", w.symbol)
		if err != nil {
			return place{}, err
		}
		// Offset 0 always belongs to the symbol: a label at the end of a section has
		// no extent.
		if w.offset != 0 && w.offset >= sym.Size {
			return place{}, outsideError(w, sym)
		}
		addr = sym.Addr + guest.GVA(w.offset)
	}
	if p.InSlot(addr) {
		return place{}, newError(CodeBlacklisted, fmt.Sprintf("%v is the engine's own code", addr), "")
	}
	syms := p.target.Symbols()
	sym, ok := syms.Find(addr)
	if !ok {
		return place{}, newError(CodeNoSymbolAt, fmt.Sprintf("%v is in no function", addr), "")
	}
	at := place{addr: addr, sym: sym, head: addr}
	head := sym.Addr
	if sym.Size > 4 && x86.HasEndbr64(syms.Code(sym.Addr, 4)) {
		head += 4
	}
	entry := head
	if k, ok := syms.(Kernel); ok && !sym.User {
		if to := k.Entry(head); to-head <= x86.MaxLen {
			entry = to
		}
	}
	if at.entry = addr == sym.Addr || addr == head; at.entry {
		at.addr = entry
	}
	if at.addr == entry {
		at.head = head
	}
	return at, nil
}

// symbol finds a symbol; error messages call it what.
func (p *places) symbol(what, name string) (guest.Symbol, *Error) {
	sym, err := p.target.Symbols().Lookup(name)
	if err == nil {
		return sym, nil
	}
	var amb *guest.AmbiguousSymbolError
	if errors.As(err, &amb) {
		x := newError(CodeAmbiguous, fmt.Sprintf("%s %q is ambiguous", what, name), "give an address instead")
		x.Cause = err
		return sym, x
	}
	x := newError(CodeSymbolNotFound, fmt.Sprintf("there is no %s %q", what, name), guest.Advice(err))
	if !errors.Is(err, guest.ErrSymbolNotFound) {
		x.Cause = err
	}
	return sym, x
}

// outsideError rejects an offset beyond the end of a symbol.
func outsideError(w where, sym guest.Symbol) *Error {
	return newError(CodeOffsetOutside, fmt.Sprintf("offset %#x is outside %s", w.offset, w.symbol), fmt.Sprintf("it has %#x bytes", sym.Size))
}

// checkAllowed checks that the blacklist and the like allow a probe at at (checks 8
// and 9).
func (p *places) checkAllowed(at place) *Error {
	syms := p.target.Symbols()
	if !syms.IsText(at.addr) {
		return newError(CodeNotText, fmt.Sprintf("%s is not code", at.sym.Name), syms.BlacklistReason(at.addr))
	}
	if why := p.forbiddenReason(at); why != "" {
		return newError(CodeBlacklisted, fmt.Sprintf("%s must not be probed", at.sym.Name), why)
	}
	if at.reportedAddr() == at.addr {
		return nil
	}
	if !at.plain && p.functions().branched(at.sym, at.addr) {
		// A hit there need not be a call, and its stack pointer need not be at the
		// return address.
		return newError(CodePatched, fmt.Sprintf("the guest itself rewrites the entry of %s", at.sym.Name),
			fmt.Sprintf("%s; and a branch leads to %v after it, where the probe would be", p.fixedReason(at.reportedAddr(), at.addr), at.addr))
	}
	return nil
}

// fixedReason returns why the guest's text at [lo, hi) must not be changed, or "".
func (p *places) fixedReason(lo, hi guest.GVA) string {
	if k, ok := p.target.Symbols().(Kernel); ok {
		return k.FixedReason(lo, hi)
	}
	return ""
}

// prepare makes the site for at: every check of its instruction, and its plan (checks
// 13 to 18). It changes no text and makes no slot.
func (p *places) prepare(at place) (*site, *Error) {
	if !at.plain {
		switch err, why := p.functions().boundary(at.sym, at.addr); {
		case why != "":
			return nil, newError(CodeUndecodable, why, "")
		case err != nil:
			return nil, err
		}
	}
	syms := p.target.Symbols()
	code, can := syms.Code(at.addr, x86.MaxLen), p.can[guest.Level(at.sym.User)]
	plan := p.planOf(at.addr, code, at.sym.User)
	n := int(plan.Inst.Len)
	if plan.Kind == x86.Refuse {
		return nil, planError(plan, code[:max(n, min(1, len(code)))])
	}
	if plan.Kind == x86.InPlace && !can.InPlace {
		return nil, newError(CodeHostCannot, "the instruction cannot be moved, and this host cannot step in place",
			fmt.Sprintf("%v: bytes % x", plan.Reason, code[:n]))
	}
	if plan.Kind == x86.Emulate && plan.Fallback == x86.InPlace && at.sym.User && p.oneSpace && !can.InPlace {
		return nil, newError(CodeHostCannot, "the instruction cannot be moved, and this target cannot emulate it for user code",
			fmt.Sprintf("bytes % x", code[:n]))
	}
	if what := p.fixedReason(at.addr, at.addr+guest.GVA(n)); what != "" {
		return nil, newError(CodePatched, fmt.Sprintf("the guest itself rewrites the instruction at %s+%#x", at.sym.Name, uint64(at.addr-at.sym.Addr)), what)
	}
	st := &site{addr: at.addr, user: at.sym.User, symbol: at.sym.Name, start: at.sym.Addr, head: at.head}
	orig := &original{n: uint8(n), plan: plan}
	copy(orig.bytes[:], code[:n])
	st.orig.Store(orig)
	pa, _ := p.pages.Translate(0, at.addr)
	st.pa.Store(uint64(pa))
	if err := p.checkUnchanged(st); err != nil {
		return nil, err
	}
	st.chain.Store(new(chain))
	st.jump.Store(noJump)
	return st, nil
}

// planOf returns how the instruction in code, at address addr, is run.
func (p *places) planOf(addr guest.GVA, code []byte, user bool) x86.Plan {
	o := x86.Options{}
	if user {
		o.CPL = 3
	}
	plan := x86.Analyze(code, uint64(addr), o)
	if k, ok := p.target.Symbols().(Kernel); ok && k.Exception(addr) {
		plan.StayPut()
	}
	return plan
}

// checkUnchanged checks that the guest's instruction at st is the image's.
func (p *places) checkUnchanged(st *site) *Error {
	want := st.bytes()
	now := make([]byte, len(want))
	if err := p.target.ReadMemory(0, st.addr, now); err != nil {
		x := newError(CodeUnreadable, "the guest's text is not mapped", fmt.Sprintf("at %v", st.addr))
		x.Cause = err
		return x
	}
	p.Unpatch(st.addr, now)
	if !bytes.Equal(now, want) {
		return textError(st, &guest.TextMismatchError{Addr: st.addr, Want: want, Got: now})
	}
	return nil
}

// forbiddenReason returns why the function at at is blacklisted, or "".
func (p *places) forbiddenReason(at place) string {
	name := at.sym.Name
	if p.forbidden[name] {
		return "on the engine's blacklist"
	}
	// A part that the compiler split off or specialized counts as the function
	// itself.
	if base, _, ok := strings.Cut(name, "."); ok && base != "" {
		if p.forbidden[base] {
			return fmt.Sprintf("a part of %s, which is on the engine's blacklist", base)
		}
		if sym, err := p.target.Symbols().Lookup(base); err == nil {
			if why := p.target.Symbols().BlacklistReason(sym.Addr); why != "" {
				return fmt.Sprintf("a part of %s: %s", base, why)
			}
		}
	}
	if why := reservedReason(name); why != "" {
		return why
	}
	return p.target.Symbols().BlacklistReason(at.addr)
}

// reservedReason returns why functions of this name are never probed, or "".
func reservedReason(name string) string {
	switch {
	case strings.HasPrefix(name, "gp_"):
		return "a stub through which traps reach the engine"
	case strings.HasPrefix(name, "__cfi_"), strings.HasPrefix(name, "__pfx_"):
		return "padding before a function, not code of its own" // kprobes A.1, check 9
	}
	return ""
}
