package probe

import (
	"iter"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// pageSize is the smallest page.
const pageSize = guest.PageSize

// Own makes p, which was read at addr with the page tables at root, what the guest itself
// has there: without the engine's int3s and jumps, in whatever page tables and at whatever
// address, and with the guest's own addresses in the place of those in the engine's
// code that stand in aligned words, as return addresses on stacks do. What the engine has
// memory of its own for stays as it is. It may be called from any thread; while the guest
// runs what was read may be of another moment.
func (e *Engine) Own(root guest.GPA, addr guest.GVA, p []byte) {
	s := State{Root: root}
	for a := range patchable(addr, p) {
		if st := e.sites.Find(a); st != nil && (root == 0 || e.sameCode(s, st, a)) {
			st.unpatch(a, addr, p)
		}
	}
	for at, rest := addr, p; len(rest) > 0; {
		n := min(uint64(len(rest)), pageSize-uint64(at)%pageSize)
		e.ownPage(s, at, rest[:n])
		at, rest = at+guest.GVA(n), rest[n:]
	}
	if e.InSlot(addr) {
		return
	}
	for off := int(-addr & 7); off+8 <= len(p); off += 8 {
		if a := guest.GVA(le.Uint64(p[off:])); e.InSlot(a) {
			le.PutUint64(p[off:], uint64(e.Home(a)))
		}
	}
}

// patchable yields the addresses at which the engine's int3s and jumps may begin that have bytes in
// p, which was read at addr: what begins before it is not seen.
func patchable(addr guest.GVA, p []byte) iter.Seq[guest.GVA] {
	return func(yield func(guest.GVA) bool) {
		for off := 1 - x86.JmpLen; off < len(p); off++ {
			if (off < 0 || p[off] == x86.Int3 || p[off] == x86.JmpOp) && !yield(addr+guest.GVA(off)) {
				return
			}
		}
	}
}

// ownPage is for what lies in one page: sites by their physical addresses, and int3s in
// pages of files.
func (e *Engine) ownPage(s State, addr guest.GVA, p []byte) {
	pa, ok := e.pages.Translate(s.Root, addr)
	if !ok {
		return
	}
	for a := range patchable(guest.GVA(pa), p) {
		if st := e.phys.Find(a); st != nil {
			st.unpatch(a, guest.GVA(pa), p)
		}
	}
	if e.files == nil {
		return
	}
	for i, b := range p {
		if b != x86.Int3 {
			continue
		}
		if at, ok := e.files.FilePlace(s.Root, addr+guest.GVA(i)); ok {
			if st := e.sites.Find(at); st != nil && st.armed.Load() {
				p[i] = st.bytes()[0]
			}
		}
	}
}

// unpatch puts the site's own bytes into p, which was read at addr, where the site is at at,
// in the place of the engine's.
func (st *site) unpatch(at, addr guest.GVA, p []byte) {
	if !st.armed.Load() {
		return
	}
	ours, orig := [x86.JmpLen]byte{x86.Int3}, st.bytes()[:1]
	if d := st.detour(); d != nil {
		ours, orig = d.jump(), d.orig[:]
	}
	for i, b := range orig {
		if off := at + guest.GVA(i) - addr; off < guest.GVA(len(p)) && p[off] == ours[i] {
			p[off] = b
		}
	}
}

// Patched reports whether any of the n bytes at addr, as the page tables at root map them, is an
// int3 or in a jump of the engine's. It may be called from any thread.
func (e *Engine) Patched(root guest.GPA, addr guest.GVA, n int) bool {
	s := State{Root: root}
	for a := addr - (x86.JmpLen - 1); a != addr+guest.GVA(n); a++ {
		if st := e.sites.Find(a); st != nil && (root == 0 || e.sameCode(s, st, a)) && st.reaches(a, addr) {
			return true
		}
	}
	for at := addr; at != addr+guest.GVA(n); at++ {
		pa, ok := e.pages.Translate(root, at)
		for k := guest.GVA(0); ok && k < x86.JmpLen; k++ {
			if st := e.phys.Find(guest.GVA(pa) - k); st != nil && st.reaches(guest.GVA(pa)-k, guest.GVA(pa)) {
				return true
			}
		}
		if e.files != nil {
			if _, ok := e.files.FilePlace(root, at); ok {
				return true
			}
		}
	}
	return false
}

// reaches reports whether the site, which is at at, has bytes of the engine's at addr or behind.
func (st *site) reaches(at, addr guest.GVA) bool {
	n := guest.GVA(1)
	if st.detour() != nil {
		n = x86.JmpLen
	}
	return st.armed.Load() && int64(addr-at) < int64(n)
}

// InCode reports whether addr is in code of the engine's. It may be called from any thread.
func (e *Engine) InCode(addr guest.GVA) bool { return e.code.At(addr) != nil }

// InStage reports whether a vCPU at addr runs code of the engine's that has registers of its
// own: those of the guest are not to be had there, but will be back when it has ended. It may be called from
// any thread.
func (e *Engine) InStage(addr guest.GVA) bool {
	switch r := e.code.At(addr).(type) {
	case *detour:
		return addr >= r.start && addr < r.copies[0] && addr != r.entry
	case *instances:
		_, trampoline := r.recordOf(addr)
		return !trampoline
	}
	return false
}
