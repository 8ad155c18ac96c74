package script

import (
	"cmp"
	"fmt"
	"strings"
)

// symbol prints an address as a name.
func (p *Printer) symbol(addr uint64) string {
	if name, _, ok := p.names.Name(addr); ok {
		return name
	}
	return p.placeText(addr)
}

// placeText prints an address without a name: in a file as its place there.
func (p *Printer) placeText(addr uint64) string {
	if file := p.names.File(addr); file != "" {
		return fmt.Sprintf("%s:%#x", file, p.names.ShownAddr(addr))
	}
	return fmt.Sprintf("%#x", addr)
}

// frames prints an address of a stack: a line for each function that is inlined there,
// and one for the function with the code.
func (p *Printer) frames(b *strings.Builder, t Type, pc uint64) {
	var around []Frame
	if t.Kind == UStack && !p.s.c.config.noDebugInfo {
		around = p.names.Frames(pc)
	}
	begin, inlined, after := "        ", "[inlined] ", ""
	if t.Format == "perf" {
		begin, inlined, after = fmt.Sprintf("\t%x ", p.names.ShownAddr(pc)), "", " (inlined)"
	}
	place := ""
	for _, f := range around {
		if t.Format != "perf" && f.File != "" && f.Line > 0 {
			place = fmt.Sprintf("@%s:%d", f.File, f.Line)
		}
		if f.Inlined {
			if f.Function != "" {
				b.WriteString(begin + inlined + f.Function + place + after + "\n")
			}
			place = ""
		}
	}
	name, offset, ok := p.names.Name(pc)
	if name = fmt.Sprintf("%s+%d", name, offset); !ok {
		name = p.placeText(pc)
	}
	if t.Format == "perf" && t.Kind == UStack {
		if !ok {
			name = fmt.Sprintf("%#x", p.names.ShownAddr(pc))
		}
		place = " (" + cmp.Or(p.names.File(pc), "[unknown]") + ")"
	}
	b.WriteString(begin + name + place + "\n")
}
