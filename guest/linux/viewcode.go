package linux

import "github.com/guestprobe/guestprobe/guest"

// Code implements guest.View: the guest's memory, without the kernel's own kprobes,
// or nothing where that is not mapped.
func (v *View) Code(addr guest.GVA, n int) []byte {
	if f := v.file(addr); f != nil {
		return f.code(v, addr, n)
	}
	r := v.now.Load().textAt(addr)
	if r == nil || n <= 0 {
		return nil
	}
	b := make([]byte, min(uint64(n), uint64(r.End-addr)))
	if !v.ReadCode(addr, b) {
		return nil
	}
	return b
}

// ReadCode reads the kernel's or a module's text at addr into p, like Code, and
// reports whether all of it could be read.
func (v *View) ReadCode(addr guest.GVA, p []byte) bool {
	if r := v.now.Load().textAt(addr); r == nil || uint64(len(p)) > uint64(r.End-addr) || v.read(addr, p) != nil {
		return false
	}
	v.restoreDisplaced(addr, p)
	return true
}
