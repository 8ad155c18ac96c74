package probe

import (
	"bytes"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// A guest's kernel that is to put a probe of its own on an instruction reads that, and those before it in the function, and
// keeps a copy that it executes. Where the engine has bytes there the guest is given its own: at the functions that it asks
// for the bytes of an instruction (TextRead), which return the address to read at, or a buffer of the caller's with what was
// there before a probe of the guest's own.

// readText is the pre handler at such a function, f(buffer, address).
func (e *Engine) readText(c *Context) int {
	var live, own [x86.MaxLen]byte
	buf, addr := guest.GVA(c.Regs.RDI), guest.GVA(c.Regs.RSI)
	n := len(live)
	for n > 0 && e.target.ReadMemory(0, addr, live[:n]) != nil {
		n--
	}
	own = live
	e.Unpatch(addr, own[:n])
	i, err := x86.Decode(own[:n])
	if err != nil || bytes.Equal(own[:i.Len], live[:i.Len]) || e.isGuestPatch(addr, own[0]) {
		return 0 // of its own it knows what was before
	}
	back, err := c.Caller()
	if err != nil {
		return 0
	}
	// Where it looks whether a jump of its own may displace what is there it may not: our probe would be under it.
	if s, ok := e.target.Symbols().Find(back); ok && strings.Contains(s.Name, "optimize") {
		c.ReturnTo(back, 0)
		return 1
	}
	if c.Write(buf, own[:n]) != nil {
		return 0
	}
	c.ReturnTo(back, uint64(buf))
	return 1
}

// isGuestPatch reports whether first, the guest's own byte at addr, begins something that a debugger of the guest's has put
// there, as far as is known.
func (k *core) isGuestPatch(addr guest.GVA, first byte) bool {
	if first != x86.Int3 && first != x86.JmpOp {
		return false
	}
	x := k.shown.Find(addr)
	return x == nil || x.orig[0] != first
}
