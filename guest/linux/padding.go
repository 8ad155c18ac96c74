package linux

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// maxPadding bounds the addresses that padding returns.
const maxPadding = 1 << 14

// padding finds int3s of the kernel's text that are never executed: those that
// compilers put after returns and jumps against speculation (CONFIG_SLS), and linkers
// between functions (arch/x86/kernel/vmlinux.lds.S). None of them is in text that is
// freed, or in a place that the kernel ever patches; and no two are next to each
// other.
func (p *piece) padding() (at []guest.GVA) {
	last := guest.GVA(0)
	for _, s := range p.Symbols() {
		in := func(r guest.Range) bool { return s.Addr >= r.Start && s.Addr < r.End }
		if s.Kind != guest.SymFunc || s.Addr == last || !slices.ContainsFunc(p.text, in) {
			continue
		}
		last = s.Addr
		code, falls := p.initialBytes(s.Addr, s.Size), true
		for a := s.Addr; len(code) != 0 && len(at) < maxPadding; {
			i, err := x86.Decode(code)
			if err != nil {
				break
			}
			trap := code[0] == x86.Int3
			if trap && !falls && (len(at) == 0 || a > at[len(at)-1]+1) {
				if _, found := p.sites.PatchAt(uint64(a-p.slide), uint64(a-p.slide)+1, AtStart); !found {
					at = append(at, a)
				}
			}
			falls = !trap && i.Falls()
			a, code = a+guest.GVA(i.Len), code[i.Len:]
		}
	}
	return at
}
