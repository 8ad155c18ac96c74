package event

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// locate finds the place of d in an image, and says whether it is a function's entry: the
// address that is probed, or the function's where a return is. It refuses what the kernel
// refuses while it parses the place: unknown and ambiguous symbols, and a return probe
// that is not at an entry. Whether an instruction begins there is the engine's to
// decide.
func (d *Def) locate(symbols probe.Symbols) (addr guest.GVA, entry bool, err error) {
	refuse := func(code Code, format string, a ...any) (guest.GVA, bool, error) {
		e := d.line().fail(1, 0, code)
		e.Detail = fmt.Sprintf(format, a...)
		return 0, false, e
	}
	p := d.Place
	addr = p.Addr
	if p.Symbol != "" {
		if p.Module != "" {
			return refuse(CodeBadProbeAddr, "the guest's image has no modules")
		}
		s, err := symbols.Lookup(p.Symbol)
		var ambiguous *guest.AmbiguousSymbolError
		switch {
		case errors.As(err, &ambiguous):
			return refuse(CodeNonUniqSymbol, "%v", err)
		case err != nil:
			return refuse(CodeBadProbeAddr, "%q: %v", p.Symbol, err)
		}
		addr = s.Addr + guest.GVA(p.Offset)
	}
	// An offset behind the symbol's end is judged by what is there. The kernel takes what
	// is behind an endbr64 for the entry too, and probes that (x86
	// arch_adjust_kprobe_addr).
	s, found := symbols.Find(addr)
	behind := s.Addr + guest.GVA(len(insn.Endbr64))
	marked := found && (addr == s.Addr || addr == behind) && d.Kind != KindWatch && insn.HasEndbr64(symbols.Code(s.Addr, len(insn.Endbr64)))
	switch entry = marked || found && addr == s.Addr; {
	case d.Kind == KindReturn && !entry:
		return refuse(CodeBadRetprobe, "%v is not a function's entry", addr)
	case d.Kind == KindReturn:
		addr = s.Addr
	case marked:
		addr = behind
	}
	return addr, entry, nil
}
