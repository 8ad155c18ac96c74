package gdb

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

// session is a debugger's connection.
type session struct {
	t    Target
	conn link
	log  *slog.Logger
	in   *bufio.Reader
	out  *bufio.Writer
	sent []byte // the last packet, for a debugger that asks for it again
	raw  []byte // of readAll; reused

	noAck    bool
	messages bool // errors may have text
	regs     []register
	xml      string
	threads  string // as XML, while it is read in parts

	cpu   int // of g, m and the like
	known int // the vCPU whose registers are in cache, or negative
	cache Registers
	where Registers // the registers that are available at once; not kept from one packet to the next
	run   int       // of c and s; -1: all
	last  Stop
	also  map[int]Stop // of other vCPUs, since the last stop
	alarm alarm
	files map[int][]byte

	// An interrupt that arrived while the guest did not run. It stops the guest
	// when it is to run next, as GDB's manual says ("Interrupts"): GDB sends it
	// after it has resumed the guest, and the guest may stop by itself before the
	// interrupt arrives.
	pending bool
	heard   atomic.Bool // an interrupt has come while the guest ran

	detached bool   // Detach was called
	strange  string // a message about wrong symbols in the debugger
	breaks   bool   // stops may say that they are at a breakpoint
}

// errDone ends a session that a debugger has ended.
var errDone = errors.New("the debugger is done")

// Serve attaches to the guest, answers the debugger at from until it
// disconnects, and detaches. It returns nil when the debugger has ended the
// session, or has closed the connection. Ending ctx ends the session, too. Serve
// closes from.
func Serve(ctx context.Context, from net.Conn, t Target, log *slog.Logger) error {
	conn, release, err := newStream(from)
	if err != nil {
		return err
	}
	defer release()
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := t.Attach(); err != nil {
		return fmt.Errorf("stop the guest for a debugger: %w", err)
	}
	s := &session{t: t, conn: conn, log: log, in: bufio.NewReader(conn), out: bufio.NewWriter(conn), run: all, known: noVCPU, files: map[int][]byte{}, also: map[int]Stop{}, alarm: alarm{rings: make(chan struct{}, 1)}}
	var first Registers
	err = t.Registers(0, &first, true)
	if err == nil {
		s.regs, s.xml = description(first.Vector)
		err = s.serve(ctx)
	}
	if !s.detached {
		err = errors.Join(err, t.Detach(false))
	}
	return err
}

// Limits of a rejected debugger: how long it has to send something and to read
// the answer, and how many answers it gets.
const (
	refuseTime = 2 * time.Second
	maxRefused = 64
)

// Refuse answers a debugger's packets with an error that says why, until the
// debugger closes the connection, or until Refuse closes it after a time. If it
// closed the connection while packets of the debugger are unread, the connection
// would be reset, and the debugger might lose the answer.
func Refuse(conn net.Conn, why string) {
	defer conn.Close()
	s := &session{conn: conn, in: bufio.NewReader(conn), out: bufio.NewWriter(conn)}
	if conn.SetDeadline(time.Now().Add(refuseTime)) != nil {
		return
	}
	for answers := 0; answers < maxRefused; {
		e, err := readEvent(s.in)
		if err != nil {
			return
		}
		if e.data != nil {
			answers++
			if s.write([]byte{'+'}) != nil || s.reply("E."+printableText(why)) != nil {
				return // it is gone
			}
		}
	}
}

// serve reads and answers packets.
func (s *session) serve(ctx context.Context) error {
	for {
		e, err := readEvent(s.in)
		if err == nil {
			err = s.event(ctx, e)
		}
		switch {
		case errors.Is(err, errDone), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return err
		}
	}
}

// event handles an event.
func (s *session) event(ctx context.Context, e event) error {
	switch {
	case e.nak && !s.noAck:
		return s.write(s.sent)
	case e.interrupt:
		s.pending = true
		return nil
	case e.data == nil:
		return nil // an acknowledgement
	case !s.noAck && e.damaged:
		return s.write([]byte{'-'})
	case !s.noAck:
		if err := s.write([]byte{'+'}); err != nil {
			return err
		}
	case e.damaged:
		return s.reply("E01")
	}
	return s.packet(ctx, e.data)
}

// packet answers one.
func (s *session) packet(ctx context.Context, data []byte) error {
	for _, h := range handlers() {
		if len(data) < len(h.prefix) || string(data[:len(h.prefix)]) != h.prefix || h.exact && len(data) > len(h.prefix) {
			continue
		}
		if !h.keeps {
			s.known = noVCPU // other clients may have changed registers since, or this packet does
		}
		answer, err := h.do(s, ctx, data[len(h.prefix):])
		if errors.Is(err, errDone) {
			return errors.Join(s.reply(answer), err)
		}
		if err != nil {
			s.log.Debug("a debugger's packet", "packet", h.prefix, "err", err)
			answer = s.failure(err, h.text)
		}
		if answer == noReply {
			return nil
		}
		return s.reply(answer)
	}
	return s.reply("")
}

// noReply stands for no answer.
const noReply = "\x00"

// errBad: the arguments of a packet are invalid.
var errBad = errors.New("the packet is malformed")

// failure formats an error as an answer. Debuggers that did not say that they
// accept text get a number, which they display: 1 for an invalid packet, 14
// (EFAULT) for everything else. With text, the packet's errors had text before
// debuggers could say that they accept it.
func (s *session) failure(err error, text bool) string {
	switch {
	case s.messages || text && !errors.Is(err, errBad):
		return "E." + printableText(err.Error())
	case errors.Is(err, errBad):
		return "E01"
	}
	return "E0e"
}

// printableText returns text as one line of ASCII.
func printableText(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

func (s *session) reply(data string) error {
	s.sent = appendPacket(s.sent[:0], data)
	return s.write(s.sent)
}

func (s *session) write(b []byte) error {
	if _, err := s.out.Write(b); err != nil {
		return err
	}
	return s.out.Flush()
}

// handler answers packets that begin with prefix. exact: that are equal to it.
// keeps: cached registers of the packet before stay valid. text: all debuggers
// accept errors with text.
type handler struct {
	prefix string
	exact  bool
	keeps  bool
	text   bool
	do     func(s *session, ctx context.Context, args []byte) (string, error)
}
