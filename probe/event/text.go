package event

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// AppendArgs appends the place and the arguments in ftrace's format:
//
//	(vfs_read+0x0/0x370) fd=3 buf=0xffff888003a5c000
//	(ksys_read+0x6f/0xf0 <- vfs_read) arg1=16
func (f *Layout) AppendArgs(b []byte, r *Record) []byte {
	b = append(b, '(')
	if r.Moment == AtReturn {
		b = f.appendPlace(b, r.Ret)
		b = append(b, " <- "...)
		if s, ok := f.names.Find(r.Addr); ok {
			b = append(b, guest.ShownName(s.Name)...)
		} else {
			b = appendAddr(b, r.Addr)
		}
	} else {
		b = f.appendPlace(b, r.Addr)
	}
	b = append(b, ')')
	for _, v := range r.Values {
		b = append(append(append(b, ' '), v.Name...), '=')
		b = v.AppendText(b)
	}
	return b
}

func (f *Layout) appendPlace(b []byte, addr guest.GVA) []byte {
	if s, ok := f.names.Find(addr); ok {
		return appendSymbolOffset(b, s, addr)
	}
	return appendAddr(b, addr)
}

func appendAddr(b []byte, addr guest.GVA) []byte { return fmt.Appendf(b, "0x%08x", uint64(addr)) }
