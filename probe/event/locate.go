package event

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// locate finds the place of d in an image and says whether it is a function's
// entry. It refuses what the kernel refuses while it parses the place: unknown
// and ambiguous symbols, and a return probe that is not at an entry. Whether
// an instruction begins there is the engine's to decide.
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
	// The kernel takes what is behind an endbr64 for the entry too (x86
	// arch_adjust_kprobe_addr). An
	// offset behind the symbol's end is judged by what is there.
	s, found := symbols.Find(addr)
	entry = found && (addr == s.Addr ||
		addr == s.Addr+guest.GVA(len(insn.Endbr64)) && insn.HasEndbr64(symbols.Code(s.Addr, len(insn.Endbr64))))
	if d.Kind == KindReturn && !entry {
		return refuse(CodeBadRetprobe, "%v is not a function's entry", addr)
	}
	return addr, entry, nil
}
