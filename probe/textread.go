package probe

import (
	"bytes"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// A guest's kernel that puts a probe of its own on an instruction reads the
// instruction, and those before it in the function, and keeps a copy that it
// executes. Where the text has the engine's bytes the guest gets its own: at the
// functions that it asks for the bytes of an instruction (TextRead), which return the
// address to read at, or a buffer of the caller's with the bytes from before a probe
// of the guest's own.

// readText is the pre handler at such a function, f(buffer, address).
func (g *registry) readText(c *Context) int {
	var live, own [x86.MaxLen]byte
	buf, addr := guest.GVA(c.Regs.RDI), guest.GVA(c.Regs.RSI)
	n := len(live)
	for n > 0 && g.target.ReadMemory(0, addr, live[:n]) != nil {
		n--
	}
	own = live
	g.Unpatch(addr, own[:n])
	i, err := x86.Decode(own[:n])
	if err != nil || bytes.Equal(own[:i.Len], live[:i.Len]) || g.isGuestPatch(addr, own[0]) {
		return 0 // for its own probes it knows the former bytes
	}
	back, err := c.Caller()
	if err != nil {
		return 0
	}
	// Where the guest checks whether a jump of its own may displace the code, it may
	// not: our probe would be under it.
	if s, ok := g.target.Symbols().Find(back); ok && strings.Contains(s.Name, "optimize") {
		c.ReturnTo(back, 0)
		return 1
	}
	if c.Write(buf, own[:n]) != nil {
		return 0
	}
	c.ReturnTo(back, uint64(buf))
	return 1
}

// isGuestPatch reports whether first, the guest's own byte at addr, begins a patch by
// a debugger of the guest's, as far as is known.
func (k *core) isGuestPatch(addr guest.GVA, first byte) bool {
	if first != x86.Int3 && first != x86.JmpOp {
		return false
	}
	x := k.shown.Find(addr)
	return x == nil || x.orig[0] != first
}
