package guest

import (
	"bytes"
	"fmt"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// MaxPatch is the greatest number of bytes that one Text.Patch changes.
const MaxPatch = 64

// Text is the guest's code, as bytes that can be changed. It is a small value.
type Text struct {
	as AddressSpace
}

// NewText returns the code that as maps.
func NewText(as AddressSpace) Text { return Text{as: as} }

// Patch replaces the bytes old at addr by new: the one way in which guest text
// changes. Both have the same length, 1 to MaxPatch; the pages may be read-only
// to the guest. When something else than old is there, nothing changes and the
// error is a *TextMismatchError; when a page is not mapped, a *PageFaultError. In an address space with pins bytes are put back in the memory
// in which they were replaced: see TextPins.
//
// Every vCPU must be out of guest mode: a processor that executes code while
// another writes it may do anything (SDM Vol. 3, 8.1.3), and it is entering
// the guest again that makes it fetch the new bytes. The order of the writes is
// nevertheless that of the kernel's text_poke: an int3 over the first byte,
// then the tail, then the first byte, so that at no moment does memory hold the
// start of one instruction with the tail of another.
func (t Text) Patch(addr GVA, old, new []byte) error {
	n := len(new)
	if n == 0 || n > MaxPatch || len(old) != n {
		return fmt.Errorf("patch text at %v: %d bytes by %d: want the same length, 1 to %d", addr, len(old), n, MaxPatch)
	}
	// MaxPatch bytes lie in two pages at most. Both are found, once, before
	// anything changes.
	head, err := t.as.host(addr, uint64(n), accessPoke)
	if err != nil {
		return fmt.Errorf("patch text at %v: %w", addr, err)
	}
	var tail []byte
	if len(head) < n {
		if tail, err = t.as.host(addr+GVA(len(head)), uint64(n-len(head)), accessPoke); err != nil {
			return fmt.Errorf("patch text at %v: %w", addr, err)
		}
	}
	k := len(head)
	if !bytes.Equal(head, old[:k]) || !bytes.Equal(tail, old[k:]) {
		got := append(append(make([]byte, 0, n), head...), tail...)
		if t.as.pins != nil {
			t.as.pins.lose(addr, got)
		}
		return &TextMismatchError{Addr: addr, Want: bytes.Clone(old), Got: got}
	}
	if n > 1 {
		head[0] = x86.Int3
		copy(head[1:], new[1:])
		copy(tail, new[k:])
	}
	head[0] = new[0]
	t.pin(addr, old[:k], new[:k])
	t.pin(addr+GVA(k), old[k:], new[k:])
	return nil
}

// pin notes in which memory old was replaced by new, all in one page.
func (t Text) pin(addr GVA, old, new []byte) {
	if t.as.pins == nil || len(new) == 0 {
		return
	}
	pa, ok := t.as.pins.at(addr)
	if !ok {
		m, err := t.as.Translate(addr)
		if err != nil {
			return // it was written a moment ago
		}
		pa = m.PA
	}
	t.as.pins.note(addr, pa, old, new)
}
