package probe

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// A guest's kernel patches itself in steps (text_poke): with interrupts off it writes
// some bytes through another mapping, reads them back by their own address, and
// crashes deliberately (BUG_ON) if they differ. So each write has two parts. First
// the text becomes exactly what the guest has written, whatever the engine had there,
// and the vCPU that writes runs until it has read that back, while the others stay
// stopped: they cannot run past a missing int3. Then the engine puts its bytes back
// over the guest's new text.

// maxPoke is how many bytes past its first byte a write may extend that the guest
// makes in pieces, and reads back as one: the kernel patches one instruction at a
// time.
const maxPoke = x86.MaxLen + 1

// TextWrite is a write of the guest's to its own text.
type TextWrite struct {
	Addr  guest.GVA
	Bytes []byte
}

// ReadBack lets the vCPU that has written run until it has read back what it wrote,
// with all others stopped. It returns, in order, the vCPU's other writes in that time
// to the MaxPoke bytes from there; the guest's memory has them by then. On an error
// the vCPU may be anywhere, and no text is changed until the next look at it.
type ReadBack func(World) ([]TextWrite, error)

// MaxPoke is the size in bytes of the range, from a write's address on, whose writes
// belong to it: see ReadBack.
const MaxPoke = maxPoke

// Probed reports whether a write of n bytes at addr would change the text of a probe,
// including the current or possible extent of its jump, or text that was once probed:
// such a write must go to WriteText. Any goroutine.
func (k *core) Probed(addr guest.GVA, n int) bool {
	for a := addr - (maxRegion - 1); a != addr+guest.GVA(n); a++ {
		if k.sites.Find(a) != nil || addr-a < x86.JmpLen && k.shown.Find(a) != nil {
			return true
		}
	}
	for a := addr; a != addr+guest.GVA(n); a++ {
		if k.shown.Find(a) != nil {
			return true
		}
	}
	return false
}

// WriteText writes b to the guest's own text at addr, as the guest has requested. A
// target calls it that intercepts the guest's writes there (a slot that turns writes
// into exits), while the vCPU that writes waits, and counts as stopped. readBack lets
// that vCPU read back its write; nil: it does not. Then the guest's bytes are below
// the probes:
//
//   - a jump that has them in its region is removed first;
//   - bytes of the engine's that return, because the guest had read and kept them,
//     are replaced by those that belong there (shown.returned), also where there is
//     no probe any more;
//   - a write that begins at a probed instruction replaces it: the written one is
//     probed from then on. An int3 of the guest's own is hit after the probe's
//     handlers, as the guest's #BP; any other instruction that cannot be probed
//     detaches the probe (Info.Changed) until the old instruction is back;
//   - so does a write that begins elsewhere and changes the instruction, unless it is
//     the rest of an instruction whose first byte the guest has made an int3
//     (text_poke_bp).
//
// Writes are done in the order of the calls. wanted is called with the world stopped;
// if it returns false (the guest was reset in between) nothing is done. written is
// false if nothing was written, either because it was not wanted, or because of
// ErrInHandler, ErrClosed or an error of the target; the guest is then as before, or
// will be when the call is repeated. Other errors are about text that could not be
// kept in line.
func (e *Engine) WriteText(addr guest.GVA, b []byte, wanted func() bool, readBack ReadBack) (written bool, err error) {
	if err := e.lock(); err != nil {
		return false, err
	}
	defer e.mu.Unlock()
	p := poke{registry: &e.registry, at: addr, n: max(len(b), maxPoke)}
	e.places.forgetFunctions(addr, addr+guest.GVA(p.n))
	err = e.stop(func(w World) error {
		if !wanted() {
			return nil
		}
		p.prepare(w)
		if err := p.write(w, addr, b); err != nil {
			return err
		}
		written = true
		p.runs = append(p.runs, TextWrite{addr, b})
		if readBack != nil {
			e.view.Unlock() // a handler on the vCPU that runs may list
			more, err := readBack(w)
			e.view.Lock()
			p.appendWrites(more)
			if err != nil {
				p.markChanged()
				return err
			}
		}
		return p.restorePatches(w)
	})
	return written, errors.Join(append(p.lost, err)...)
}

// poke is a write of the guest's that is under way.
type poke struct {
	*registry
	at     guest.GVA
	n      int         // bytes from there on may be written
	before []byte      // the guest's own text, from at-pokeMargin on
	sites  []*site     // whose text, including the current or possible extent of their jumps, is in these bytes
	runs   []TextWrite // the bytes written
	lost   []error
}

// pokeMargin is how many bytes around a write are examined: the region of a site at
// its end, and a jump that begins right before it.
const pokeMargin = x86.JmpLen

// prepare removes the jumps that the write may reach. The world is stopped.
func (p *poke) prepare(w World) {
	end := p.at + guest.GVA(p.n)
	for a := p.at - (maxRegion - 1); a != end; a++ {
		st := p.registry.sites.Find(a)
		if st == nil {
			continue
		}
		p.sites = append(p.sites, st)
		if st.region == nil || st.addr+guest.GVA(st.region.Len) > p.at {
			p.opt.unoptimize(w, st, &p.lost)
			st.region, st.text = nil, nil
			p.opt.set(st, noJump)
		}
	}
	p.before = p.guestBytes(p.at-pokeMargin, p.n+2*pokeMargin)
}

// guestBytes returns the guest's own n bytes at addr: fewer where the text ends.
func (p *poke) guestBytes(addr guest.GVA, n int) []byte {
	b := make([]byte, n)
	for len(b) > 0 && p.target.ReadMemory(0, addr, b) != nil {
		b = b[:len(b)-1]
	}
	p.Unpatch(addr, b)
	return b
}

// write makes the text at addr b, whatever was there. The world is stopped.
func (p *poke) write(w World, addr guest.GVA, b []byte) error {
	old := make([]byte, len(b))
	if err := p.target.ReadMemory(0, addr, old); err != nil {
		return err
	}
	if err := w.PatchText(addr, old, b); err != nil {
		return err
	}
	p.markOverwritten(addr, len(b))
	return nil
}

// markOverwritten records that no int3 of the engine's is in the n bytes at addr any
// more.
func (p *poke) markOverwritten(addr guest.GVA, n int) {
	for _, st := range p.sites {
		if st.addr-addr < guest.GVA(n) {
			st.armed.Store(false)
		}
	}
}

// appendWrites joins the pieces that the guest has written, in ascending order as the
// processor does.
func (p *poke) appendWrites(writes []TextWrite) {
	for _, t := range writes {
		p.markOverwritten(t.Addr, len(t.Bytes))
		last := &p.runs[len(p.runs)-1]
		off := t.Addr - last.Addr
		if off > guest.GVA(len(last.Bytes)) {
			p.runs = append(p.runs, t)
			continue
		}
		last.Bytes = append(append([]byte{}, last.Bytes[:off]...), t.Bytes...)
	}
}

// markChanged is for a guest whose vCPU is not available: its writes stay, and the
// next look at the text finds them.
func (p *poke) markChanged() {
	for _, st := range p.sites {
		st.changed = st.changed || !st.armed.Load()
	}
}

// restorePatches puts the engine's bytes back over the guest's new text. The world is
// stopped.
func (p *poke) restorePatches(w World) error {
	for _, run := range p.runs {
		b := p.intendedBytes(run)
		if string(b) != string(run.Bytes) {
			p.log.Info("bytes of probes that the guest had read come back", "addr", run.Addr, "written", run.Bytes, "taken for", b)
			if err := w.PatchText(run.Addr, run.Bytes, b); err != nil {
				return err
			}
		}
		for _, st := range p.sites {
			if now := p.originalAfterWrite(st, run.Addr, b); now == nil || !p.setOriginal(st, now) {
				p.text.disarm(w, st, &p.lost)
				st.changed = true
			}
		}
		p.overlay(run.Addr, b)
	}
	if _, err := p.text.updateArming(w, p.sites, &p.lost); err != nil {
		p.lost = append(p.lost, err)
	}
	return nil
}

// overlay makes b at addr the guest's own text as of before the next write.
func (p *poke) overlay(addr guest.GVA, b []byte) {
	for i := range b {
		if off := addr + guest.GVA(i) - (p.at - pokeMargin); off < guest.GVA(len(p.before)) {
			p.before[off] = b[i]
		}
	}
}

// intendedBytes returns the bytes that the guest means by a write: engine bytes that
// it can have only from reading them are replaced by the guest's own.
func (p *poke) intendedBytes(run TextWrite) []byte {
	base := p.at - pokeMargin
	off := run.Addr - base
	out := append([]byte{}, run.Bytes...)
	if off > guest.GVA(len(p.before)) || off+guest.GVA(len(out)) > guest.GVA(len(p.before)) {
		return out
	}
	before := p.before[off:][:len(out)]
	after := append([]byte{}, p.before...)
	copy(after[off:], out)
	for a := run.Addr - (x86.JmpLen - 1); a != run.Addr+guest.GVA(len(out)); a++ {
		if x := p.shown.Find(a); x != nil {
			x.replacePatchBytes(int(int64(a-run.Addr)), before, run.Bytes, out, tailOf(after, int(int64(a-base))))
		}
	}
	return out
}

// tailOf returns the four bytes after the one at i, or nil if b is too short.
func tailOf(b []byte, i int) []byte {
	if i < 0 || i+x86.JmpLen > len(b) {
		return nil
	}
	return b[i+1 : i+x86.JmpLen]
}
