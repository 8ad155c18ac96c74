package guest

import (
	"bytes"
	"fmt"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// maxPatch is the most bytes that one Text.Patch changes.
const maxPatch = 64

// Text is the guest's code, as changeable bytes. It is a small value.
type Text struct {
	as AddressSpace
}

// NewText returns the code that as maps.
func NewText(as AddressSpace) Text { return Text{as: as} }

// Patch replaces the bytes old at addr by new: the only way to change guest text.
// Both have the same length, 1 to maxPatch; the pages may be read-only to the guest.
// If old is not there, nothing changes and the error is a *TextMismatchError; if a
// page is not mapped, it is a *PageFaultError. In an address space with pins bytes
// are restored in the memory in which they were replaced: see TextPins.
//
// Every vCPU must be out of guest mode: a processor that executes code while another
// writes it may do anything (SDM Vol. 3, 8.1.3), and it fetches the new bytes only
// because it enters the guest again. The order of the writes is nevertheless the same
// as in the kernel's text_poke: an int3 over the first byte, then the tail, then the
// first byte, so that memory never holds the start of one instruction with the tail
// of another.
func (t Text) Patch(addr GVA, old, new []byte) error {
	n := len(new)
	if n == 0 || n > maxPatch || len(old) != n {
		return fmt.Errorf("patch text at %v: %d bytes by %d: want the same length, 1 to %d", addr, len(old), n, maxPatch)
	}
	// maxPatch bytes are in at most two pages. Look up both once, before changing
	// anything.
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

// pin records the memory in which old was replaced by new, all in one page.
func (t Text) pin(addr GVA, old, new []byte) {
	if t.as.pins == nil || len(new) == 0 {
		return
	}
	pa, ok := t.as.pins.pageAt(addr)
	if !ok {
		m, err := t.as.Translate(addr)
		if err != nil {
			return // it was just written
		}
		pa = m.PA
	}
	t.as.pins.note(addr, pa, old, new)
}
