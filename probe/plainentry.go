package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// IsPlainEntry reports whether the function that sym names, of a kernel, certainly has an instruction at at, which is at its beginning, and
// no branch leads into the code up to the end of this instruction, except to its first byte from other functions. Then Analyze finds nothing
// that Boundary rejects, and no branch to at. It is much cheaper than Analyze, for listings of all functions. If it is not certain the result
// is false.
func (fs *Functions) IsPlainEntry(sym guest.Symbol, at guest.GVA) bool {
	k, kernel := fs.syms.(Kernel)
	img, ok := fs.syms.(Image)
	off := at - sym.Addr
	if !kernel || !ok || sym.User || at < sym.Addr || uint64(off) >= sym.Size || sym.Size > flow.MaxCode {
		return false
	}
	fs.refresh()
	code := fs.syms.Code(sym.Addr, int(sym.Size))
	if len(code) != int(sym.Size) {
		return false
	}
	end, ok := fs.decodeEntry(sym.Addr, code, int(off))
	if !ok {
		return false
	}
	all := img.Symbols()
	if i := firstSymbol(all, sym.Addr+1); i < len(all) && all[i].Addr < end {
		return false
	}
	for _, a := range k.Edges(sym.Addr, sym.Addr+guest.GVA(sym.Size)) {
		if i := a - sym.Addr; a < end && i != 0 || !fs.entry.begins[i] {
			return false
		}
	}
	index := fs.textIndex()
	return img.Data(at, at+1) == "" && index.Complete() && len(index.Targets(uint64(sym.Addr)+1, uint64(end))) == 0
}

// straightEntry is room for decodeEntry.
type straightEntry struct {
	begins []bool // by offset: an instruction begins there
	to     []int  // targets of branches
}

// decodeEntry decodes a function of a kernel in a straight line. ok is false if this fails, if a branch leads into its instructions or to
// one of those up to off, except the first byte, or anywhere that cannot be known, or if no instruction begins at off. end is the end of the
// instruction there.
func (fs *Functions) decodeEntry(addr guest.GVA, code []byte, off int) (end guest.GVA, ok bool) {
	e := &fs.entry
	e.begins, e.to = append(e.begins[:0], make([]bool, len(code))...), e.to[:0]
	for at := 0; at < len(code); {
		i, err := x86.Decode(code[at:])
		if err != nil {
			return 0, false
		}
		switch i.Class() {
		case x86.ClassJumpInd, x86.ClassFar:
			return 0, false
		}
		if t, ok := i.Target(uint64(addr) + uint64(at)); ok {
			if in := t - uint64(addr); in > 0 && in < uint64(len(code)) {
				e.to = append(e.to, int(in))
			}
		}
		if at < off && !i.Falls() {
			return 0, false
		}
		e.begins[at] = true
		next := at + int(i.Len)
		if at == off {
			end = addr + guest.GVA(next)
		}
		at = next
		if at > len(code) {
			return 0, false
		}
	}
	for _, t := range e.to {
		if !e.begins[t] || addr+guest.GVA(t) < end {
			return 0, false
		}
	}
	return end, end != 0
}
