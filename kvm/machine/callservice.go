package machine

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
)

// servicePoll is how often the host checks for the call service's answer.
const servicePoll = 500 * time.Microsecond

// runService makes a call through the guest's call service at box.
func (q *guestCalls) runService(ctx context.Context, box guest.Symbol, fn guest.GVA, args []uint64) (uint64, error) {
	m := q.m
	m.mu.Lock()
	switch {
	case m.phase != PhaseRunning:
		m.mu.Unlock()
		return 0, ErrNotRunning
	case q.service:
		m.mu.Unlock()
		return 0, ErrCallBusy
	}
	q.service = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		q.service = false
		m.mu.Unlock()
	}()
	poll := time.NewTicker(servicePoll)
	defer poll.Stop()
	b, err := q.readMailbox(box)
	if err != nil {
		return 0, err
	}
	for b.request != b.done { // an earlier call timed out and still runs
		select {
		case <-ctx.Done():
			return 0, ErrCallBusy
		case <-poll.C:
		}
		if b, err = q.readMailbox(box); err != nil {
			return 0, err
		}
	}
	want := b.request + 1
	if err := q.post(box.Addr, want, fn, args); err != nil {
		return 0, err
	}
	for {
		changed := m.Changed()
		if b, err = q.readMailbox(box); err != nil {
			return 0, err
		}
		if b.done == want {
			if b.fault != 0 {
				return 0, &CallFaultError{Vector: uint8(b.fault)}
			}
			return b.ret, nil
		}
		if m.ended() {
			return 0, ErrNotRunnable
		}
		select {
		case <-poll.C:
		case <-changed:
		case <-ctx.Done():
			return 0, ErrCallRunning
		}
	}
}

// mailbox is the part of the call service's mailbox that the host reads.
type mailbox struct{ request, done, ret, fault uint64 }

// mailboxFault is the offset of a word that a guest may add to its mailbox: 0
// when the function returned, else 0x100 + the vector of the exception that
// ended it.
const mailboxFault = guest.MailboxSize

// readMailbox reads and checks the mailbox.
func (q *guestCalls) readMailbox(box guest.Symbol) (mailbox, error) {
	var p [mailboxFault + 8]byte
	n := guest.MailboxSize
	if box.Size >= uint64(len(p)) {
		n = len(p)
	}
	if err := q.m.Peek(box.Addr, p[:n]); err != nil {
		return mailbox{}, fmt.Errorf("call service: %w", err)
	}
	at := func(off int) uint64 { return binary.LittleEndian.Uint64(p[off:]) }
	if at(guest.MailboxMagicOff) != guest.MailboxMagic {
		return mailbox{}, fmt.Errorf("call service: no magic number at %v: the guest has not set it up, or has overwritten it", box.Addr)
	}
	return mailbox{at(guest.MailboxRequest), at(guest.MailboxDone), at(guest.MailboxRet), at(mailboxFault)}, nil
}

// post passes a request to the call service. It writes the number last, because
// the guest polls it.
func (q *guestCalls) post(box guest.GVA, number uint64, fn guest.GVA, args []uint64) error {
	m := q.m
	m.memory.RLock()
	defer m.memory.RUnlock()
	if m.freed {
		return ErrClosed
	}
	var p [guest.MailboxRet - guest.MailboxFn]byte
	binary.LittleEndian.PutUint64(p[:], uint64(fn))
	for i, a := range args {
		binary.LittleEndian.PutUint64(p[guest.MailboxArgs-guest.MailboxFn+8*i:], a)
	}
	if err := m.target().WriteMemory(0, box+guest.MailboxFn, p[:]); err != nil {
		return fmt.Errorf("call service: %w", err)
	}
	binary.LittleEndian.PutUint64(p[:8], number)
	if err := m.target().WriteMemory(0, box+guest.MailboxRequest, p[:8]); err != nil {
		return fmt.Errorf("call service: %w", err)
	}
	return nil
}
