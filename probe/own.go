package probe

import (
	"iter"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// pageSize is the smallest page.
const pageSize = guest.PageSize

// UnpatchBytes makes p, which was read at addr with the page tables at root, what the
// guest itself has there: without the engine's int3s and jumps, in whatever page
// tables and at whatever address, and with the guest's own addresses in the place of
// those in the engine's code that stand in aligned words, as return addresses on
// stacks do. The engine's own memory stays as it is. It may be called from any
// thread; while the guest runs, the bytes may be of another moment.
func (e *Engine) UnpatchBytes(root guest.GPA, addr guest.GVA, p []byte) {
	s := State{Root: root}
	for a := range patchable(addr, p) {
		if st := e.sites.Find(a); st != nil && (root == 0 || e.sameCode(s, st, a)) {
			st.unpatch(a, addr, p)
		}
	}
	for at, rest := addr, p; len(rest) > 0; {
		n := min(uint64(len(rest)), pageSize-uint64(at)%pageSize)
		e.unpatchPage(s, at, rest[:n])
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

// patchable yields the addresses at which the engine's int3s and jumps may begin that
// have bytes in p, which was read at addr: patches that begin before it are not seen.
func patchable(addr guest.GVA, p []byte) iter.Seq[guest.GVA] {
	return func(yield func(guest.GVA) bool) {
		for off := 1 - x86.JmpLen; off < len(p); off++ {
			if (off < 0 || p[off] == x86.Int3 || p[off] == x86.JmpOp) && !yield(addr+guest.GVA(off)) {
				return
			}
		}
	}
}

// unpatchPage unpatches bytes in one page: sites by their physical addresses, and
// int3s in pages of files.
func (g *registry) unpatchPage(s State, addr guest.GVA, p []byte) {
	pa, ok := g.pages.Translate(s.Root, addr)
	if !ok {
		return
	}
	for a := range patchable(guest.GVA(pa), p) {
		if st := g.phys.Find(a); st != nil {
			st.unpatch(a, guest.GVA(pa), p)
		}
	}
	if g.files == nil {
		return
	}
	for i, b := range p {
		if b != x86.Int3 {
			continue
		}
		if at, ok := g.files.FilePlace(s.Root, addr+guest.GVA(i)); ok {
			if st := g.sites.Find(at); st != nil && st.armed.Load() {
				p[i] = st.bytes()[0]
			}
		}
	}
}

// Patched reports whether any of the n bytes at addr, as the page tables at root map
// them, is an int3 or in a jump of the engine's. It may be called from any thread.
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

// InCode reports whether addr is in code of the engine's. It may be called from any thread.
func (e *Engine) InCode(addr guest.GVA) bool { return e.code.ResidentAt(addr) != nil }

// FixupAt reports whether the instruction at addr is a load by a Stage from memory that
// may not be there, and where the vCPU resumes if it faults. It may be called from any
// thread.
func (e *Engine) FixupAt(addr guest.GVA) (to guest.GVA, ok bool) {
	if r := e.code.ResidentAt(addr); r != nil {
		return r.fixup(addr)
	}
	return 0, false
}

// InStage reports whether a vCPU at addr runs code of the engine's that uses the
// registers for itself: the guest's registers are not available there, but are
// restored when that code ends. It may be called from any thread.
func (e *Engine) InStage(addr guest.GVA) bool {
	switch r := e.code.ResidentAt(addr).(type) {
	case *detour:
		return addr >= r.start && addr < r.copies[0] && addr != r.entry
	case *instances:
		_, trampoline := r.recordOf(addr)
		return !trampoline
	}
	return false
}
