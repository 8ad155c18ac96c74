package machine

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	x86text "github.com/guestprobe/guestprobe/guest/x86/text"
	"github.com/guestprobe/guestprobe/probe"
)

// DisasmLine is one instruction of a listing.
type DisasmLine struct {
	Addr   guest.GVA `json:"addr"`
	Bytes  []byte    `json:"bytes"`
	Text   string    `json:"text"` // as in objdump, "(unknown)", or "(bad)" for a byte that is not an instruction
	Symbol string    `json:"symbol,omitempty"`
	// Current marks the instruction that the listing is about.
	Current bool `json:"current,omitempty"`
}

// String returns the line as a debugger prints it.
func (l DisasmLine) String() string {
	mark := "  "
	if l.Current {
		mark = "=>"
	}
	return fmt.Sprintf("%s %016x %-28s %-24s %s", mark, uint64(l.Addr), l.Symbol, fmt.Sprintf("% x", l.Bytes), l.Text)
}

// Sizes of a listing.
const (
	disasmBefore = 4    // instructions before RIP
	disasmAfter  = 4    // and after it
	disasmReach  = 4096 // how far back the symbol may start
	insnMax      = 15   // bytes (SDM Vol. 2, 2.3.11)
)

// disassemble lists the code around rip in as. It calls unpatch to replace
// probes by the original bytes. Instructions before rip are known only if the
// symbol's start is near, because x86 code cannot be decoded backwards.
func disassemble(as guest.AddressSpace, syms probe.Symbols, rip guest.GVA, unpatch func(guest.GVA, []byte)) []DisasmLine {
	var before []DisasmLine
	if s, ok := syms.Find(rip); ok && rip-s.Addr <= disasmReach {
		for a := s.Addr; a < rip; {
			l, ok := disasmOne(as, syms, a, unpatch)
			if !ok {
				break
			}
			before = append(before, l)
			a += guest.GVA(len(l.Bytes))
		}
	}
	lines := before[max(0, len(before)-disasmBefore):]
	for a, n := rip, 0; n <= disasmAfter; n++ {
		l, ok := disasmOne(as, syms, a, unpatch)
		if !ok {
			break
		}
		l.Current = a == rip
		lines = append(lines, l)
		a += guest.GVA(len(l.Bytes))
	}
	return lines
}

// disasmOne decodes the instruction at a. A byte that is not an instruction is
// shown as one "(bad)" byte. It returns false if nothing is mapped there.
func disasmOne(as guest.AddressSpace, syms probe.Symbols, a guest.GVA, unpatch func(guest.GVA, []byte)) (DisasmLine, bool) {
	code := make([]byte, insnMax)
	n := len(code)
	for n > 0 && as.Read(a, code[:n]) != nil {
		n--
	}
	if code = code[:n]; n == 0 {
		return DisasmLine{}, false
	}
	unpatch(a, code)
	l := DisasmLine{Addr: a, Bytes: code[:1], Text: "(bad)", Symbol: symbolize(syms, a)}
	inst, err := x86.Decode(code)
	if err != nil {
		return l, true
	}
	l.Bytes = code[:inst.Len]
	l.Text = x86text.Format(&inst, uint64(a), func(addr uint64) (string, uint64) {
		s, _ := syms.Find(guest.GVA(addr))
		return s.Name, uint64(s.Addr)
	})
	if l.Text == "" {
		l.Text = "(unknown)"
	}
	return l, true
}
