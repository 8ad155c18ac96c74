package probe

import (
	"bytes"
	"slices"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// shown records bytes that once replaced the guest's own bytes at an address, where
// code in the guest that reads text may have read them: a debugger of its own that
// saves what it displaces. It is kept when the probe is removed, because the guest
// may write the bytes back at any time. A value never changes.
type shown struct {
	orig  []byte             // the guest's own: the bytes that an int3 or a jump displaces
	jumps [][x86.JmpLen]byte // the newest first; empty for an int3
}

// int3sShown has what an int3 displaced, by that byte: nothing else is known of most probes.
var int3sShown = func() (all [256]*shown) {
	for i := range all {
		all[i] = &shown{orig: []byte{byte(i)}}
	}
	return all
}()

// Bounds of that record. If a guest holds a jump of a probe for longer than that many
// later changes there, or holds jumps of more places, its write is taken literally.
const (
	maxJumps = 8
	maxShown = 1 << 20
)

// show records that the guest's text at st has the engine's int3, or jump unless it
// is nil. Callers hold mu.
func (k *core) show(st *site, jump *detour) {
	if st.user {
		return // a file's: only the host writes to its pages
	}
	was := k.shown.Find(st.addr)
	first := st.bytes()[0]
	if was == nil && k.shown.Len() >= maxShown || was != nil && jump == nil && (first == x86.Int3 || first == x86.JmpOp) {
		return // an int3 of the guest's debugger is not an instruction to restore
	}
	now := int3sShown[first]
	if jump != nil {
		now = &shown{orig: bytes.Clone(jump.orig[:])}
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

// replacePatchBytes replaces the engine's bytes in out by the guest's own, if the
// guest can have written them only because it had read them. out is b, and goes off
// bytes after the beginning of x (before it, if off is less than 0). before is the
// guest's own text where b goes; tail is the text after the first byte of x then, or
// nil.
//
// It can if b has, as far as it goes, bytes that were once there, and
//
//   - that are four bytes or more of a jump;
//   - or the write changes nothing but that, and is longer than one byte;
//   - or something of the guest's was there in between: it puts back the bytes that
//     this had displaced. For a single e9 over an int3 it is then unknown what it
//     begins, except that the bytes after it are not a displacement of the guest's.
//
// An int3 over an instruction is the guest's own, and so is one over the first byte
// of a jump of its own, which it is about to remove.
func (x *shown) replacePatchBytes(off int, before, b, out, tail []byte) {
	from, to := max(0, -off), min(len(x.orig), len(b)-off) // the range of the bytes once shown, in b
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

// matchesPatch reports whether b equals, from the byte i on, bytes that the engine
// once had in the text there.
func (x *shown) matchesPatch(i int, b []byte) bool {
	for j := range x.jumps {
		if bytes.Equal(x.jumps[j][i:i+len(b)], b) {
			return true
		}
	}
	return i == 0 && b[0] == x86.Int3 && bytes.Equal(x.orig[1:len(b)], b[1:])
}
