package event

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// locate finds the place of d in an image: the probed address, or for a return the
// function's, and the name of the function if it is a function's entry, otherwise "".
// It rejects the same as the kernel while it parses the place: unknown and ambiguous
// symbols, and a return probe that is not at an entry. An error about a symbol has
// the engine's error as its cause, but the kernel's errno. The engine checks whether
// an instruction begins there.
func (d *Def) locate(symbols probe.Symbols) (addr guest.GVA, fn string, err error) {
	refuse := func(code Code, cause *probe.Error) (guest.GVA, string, error) {
		e := d.line().fail(1, 0, code)
		e.setCause(cause)
		return 0, "", e
	}
	p := d.Place
	addr = p.Addr
	if p.Symbol != "" {
		s, err := symbols.Lookup(p.FullName())
		var ambiguous *guest.AmbiguousSymbolError
		switch {
		case errors.Is(err, guest.ErrModuleNotFound) && d.Kind != KindWatch && !strings.ContainsAny(p.Symbol, "*?["):
			// As in the kernel, it waits for its module (register_trace_kprobe), and
			// errors in the place are reported then. Its first byte is assumed to be
			// a function's entry.
			if p.Offset == 0 {
				fn = p.Symbol
			}
			return 0, fn, nil
		case errors.As(err, &ambiguous):
			return refuse(CodeNonUniqSymbol, &probe.Error{Code: probe.CodeAmbiguous, Errno: syscall.EADDRNOTAVAIL, Text: err.Error(), Detail: "give one of the addresses instead", Cause: err})
		case err != nil && inFile(p.Symbol):
			return refuse(CodeFilePlace, &probe.Error{Code: probe.CodeSymbolNotFound, Errno: syscall.ENOENT, Text: err.Error(), Cause: err})
		case err != nil:
			return refuse(CodeBadProbeAddr, &probe.Error{Code: probe.CodeSymbolNotFound, Errno: syscall.ENOENT, Text: fmt.Sprintf("the guest has no symbol %q", p.FullName()), Detail: cmp.Or(partsAdvice(symbols, p.FullName()), guest.Advice(err), nearAdvice(symbols, p.FullName())), Cause: err})
		}
		addr = s.Addr + guest.GVA(p.Offset)
	}
	// An offset past the symbol's end is judged by the symbol there. The kernel also
	// treats the place after an endbr64 as the entry, and probes that (x86
	// arch_adjust_kprobe_addr).
	s, found := symbols.Find(addr)
	after := s.Addr + guest.GVA(len(x86.Endbr64))
	marked := found && (addr == s.Addr || addr == after) && d.Kind != KindWatch && x86.HasEndbr64(symbols.Code(s.Addr, len(x86.Endbr64)))
	entry := marked || found && addr == s.Addr
	if entry {
		fn = s.Name
		if given, err := symbols.Lookup(p.FullName()); err == nil && given.Addr == s.Addr && given.Name == p.Symbol {
			fn = p.Symbol // if the address has several names, the one that was written
		}
	}
	switch {
	case d.Kind == KindReturn && !entry:
		e := d.line().fail(1, 0, CodeBadRetprobe)
		e.Detail = fmt.Sprintf("%v is not a function's entry", addr)
		return 0, "", e
	case d.Kind == KindReturn:
		addr = s.Addr
	case marked:
		addr = after
	}
	return addr, fn, nil
}
