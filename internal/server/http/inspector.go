package http

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/session"
)

// inspector answers requests about the present state of the guest: symbols,
// code, registers, memory, stacks, variables and tasks. It changes only
// registers, memory and console input, at a client's request. It does not depend
// on streams, scripts, snapshots or clients. Any goroutine may use it.
type inspector struct {
	guest  Guest
	probes *session.Session
	disas  Disassembler
}

// symbolize returns name+0xoffset, or the address where no symbol is.
func (in *inspector) symbolize(a guest.GVA) string {
	sym, ok := in.guest.Image().Find(a)
	switch {
	case !ok:
		return a.String()
	case sym.Addr == a:
		return sym.Name
	default:
		return fmt.Sprintf("%s+%#x", sym.Name, uint64(a-sym.Addr))
	}
}
