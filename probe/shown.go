package probe

import (
	"bytes"
	"slices"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// shown is what has stood in the text in place of the guest's own bytes at an address, where whatever in the guest reads
// text may have read it: a debugger of its own that saves what it displaces. It stays known when the probe goes, because the guest
// may write it back at any time. A value never changes.
type shown struct {
	orig  []byte             // the guest's own: what an int3 displaces, or a jump
	jumps [][x86.JmpLen]byte // the newest first; of an int3 none
}

// Bounds of what is remembered. A guest that keeps a jump of a probe for longer than that many others there, or of more
// places, gets back what it writes.
const (
	maxJumps = 8
	maxShown = 1 << 20
)

// show remembers that the guest's text at st has the engine's int3, or jump unless it is nil. Callers hold mu.
func (k *core) show(st *site, jump *detour) {
	if st.user {
		return // a file's: its pages are written to by the host alone
	}
	was := k.shown.Find(st.addr)
	first := st.bytes()[0]
	if was == nil && k.shown.Len() >= maxShown || was != nil && jump == nil && (first == x86.Int3 || first == x86.JmpOp) {
		return // a debugger's of the guest's own is no instruction to come back
	}
	now := &shown{orig: bytes.Clone(st.bytes()[:1])}
	if jump != nil {
		now.orig = bytes.Clone(jump.orig[:])
	}
	if was != nil && bytes.HasPrefix(was.orig, now.orig) {
		if jump == nil {
			return
		}
		now.jumps = was.jumps
	}
	if jump != nil {
		j := jump.jump()
		if slices.Contains(now.jumps, j) {
			return
		}
		now.jumps = append([][x86.JmpLen]byte{j}, now.jumps[:min(len(now.jumps), maxJumps-1)]...)
	}
	k.shown.Set(st.addr, now)
}

// replacePatchBytes replaces in out, which is b and goes to off bytes before (less than 0) or behind where the write begins, the
// engine's bytes by those that belong there, if the guest can have written them only because it had read them. before is what
// the guest's own text was where b goes, tail what is behind the first byte of x then, or nil.
//
// It can where b has, as far as it goes, what has stood there, and
//
//   - that are four bytes or more of a jump;
//   - or the write changes nothing but that, and is longer than one byte;
//   - or something of the guest's has stood there in between: it puts back what that has displaced. Of a single e9 over an int3 it
//     is not known, then, what it begins, but that the bytes behind it are no displacement of the guest's.
//
// An int3 over an instruction is the guest's own, and so is one over the first byte of a jump of its own, which it is about to take away.
func (x *shown) replacePatchBytes(off int, before, b, out, tail []byte) {
	from, to := max(0, -off), min(len(x.orig), len(b)-off) // of what has stood there, in b
	if from >= to {
		return
	}
	orig, now, was := x.orig[from:to], b[off+from:off+to], before[off+from:off+to]
	if bytes.Equal(orig, now) || !x.matchesPatch(from, now) {
		return
	}
	alone := from == 0 && to == 1 && now[0] == x86.JmpOp
	put := false // the guest had something of its own there
	for i := range orig {
		put = put || now[i] != orig[i] && was[i] != orig[i] && was[i] != now[i]
	}
	same := true
	for i := range b {
		k := i - off - from
		same = same && (b[i] == before[i] || k >= 0 && k < len(orig) && was[k] == orig[k])
	}
	switch {
	case len(now) >= x86.JmpLen-1:
	case alone && len(x.orig) == x86.JmpLen:
		if tail == nil || !bytes.Equal(tail, x.orig[1:]) {
			return
		}
	case len(b) == 1 && now[0] == x86.Int3 && was[0] == x86.JmpOp:
		return
	case len(b) > 1 && same, put:
	default:
		return
	}
	copy(out[off+from:], orig)
}

// matchesPatch reports whether b is, from the byte i on, what the text has had there of the engine's.
func (x *shown) matchesPatch(i int, b []byte) bool {
	for j := range x.jumps {
		if bytes.Equal(x.jumps[j][i:i+len(b)], b) {
			return true
		}
	}
	return i == 0 && b[0] == x86.Int3 && bytes.Equal(x.orig[1:len(b)], b[1:])
}
