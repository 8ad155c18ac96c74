package gdb

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
)

// handlers is the table of packets, in the order in which they are tried (GDB
// manual, E.2 to E.7).
var handlers = sync.OnceValue(func() []handler {
	fixed := func(answer string) func(*session, context.Context, []byte) (string, error) {
		return func(*session, context.Context, []byte) (string, error) { return answer, nil }
	}
	return []handler{
		// Features and modes of the two sides.
		{prefix: "qSupported", do: (*session).answerSupported},
		{prefix: "QStartNoAckMode", exact: true, do: (*session).startNoAck},
		{prefix: "qAttached", do: fixed("1")}, // quitting detaches
		{prefix: "qHostInfo", exact: true, do: fixed("triple:" + hex.EncodeToString([]byte("x86_64-unknown-none-elf")) + ";ptrsize:8;endian:little;")},
		{prefix: "qProcessInfo", exact: true, do: fixed("pid:1;ptrsize:8;endian:little;")},
		{prefix: "D", do: (*session).detach},
		{prefix: "k", exact: true, do: (*session).kill},
		{prefix: "qRcmd,", do: (*session).monitor},

		// Threads.
		{prefix: "H", do: (*session).choose},
		{prefix: "T", do: (*session).answerAlive},
		{prefix: "qC", exact: true, do: func(s *session, _ context.Context, _ []byte) (string, error) {
			return fmt.Sprintf("QC%x", s.cpu+1), nil
		}},
		{prefix: "qfThreadInfo", exact: true, do: (*session).threadList},
		{prefix: "qsThreadInfo", exact: true, do: fixed("l")},
		{prefix: "qThreadExtraInfo,", do: (*session).threadInfo},

		// Registers and memory.
		{prefix: "g", exact: true, do: (*session).readAll},
		{prefix: "G", do: (*session).writeAll, text: true},
		{prefix: "p", do: (*session).readOne, keeps: true},
		{prefix: "P", do: (*session).writeOne, text: true},
		{prefix: "m", do: (*session).readMemory},
		{prefix: "M", do: (*session).writeHex},
		{prefix: "X", do: (*session).writeBinary},
		{prefix: "qSearch:memory:", do: (*session).search},
		{prefix: "qCRC:", do: (*session).checksum},

		// Stopping and resuming.
		{prefix: "?", exact: true, do: func(s *session, _ context.Context, _ []byte) (string, error) { return s.haltReason() }},
		{prefix: "qThreadStopInfo", do: (*session).threadStop},
		{prefix: "vCont?", exact: true, do: fixed("vCont;c;C;s;S;r")},
		{prefix: "vCont;", do: (*session).resume},
		{prefix: "c", do: legacyAction("c")},
		{prefix: "C", do: legacyAction("C")},
		{prefix: "s", do: legacyAction("s")},
		{prefix: "S", do: legacyAction("S")},
		{prefix: "Z", do: func(s *session, _ context.Context, b []byte) (string, error) { return s.breakpoint(b, s.t.Insert) }},
		{prefix: "z", do: func(s *session, _ context.Context, b []byte) (string, error) { return s.breakpoint(b, s.t.Remove) }},

		// Programs and descriptions.
		{prefix: "qOffsets", exact: true, do: (*session).offsets},
		{prefix: "qSymbol:", do: (*session).symbol},
		{prefix: "qXfer:features:read:target.xml:", do: func(s *session, _ context.Context, b []byte) (string, error) { return slice(s.xml, b) }},
		{prefix: "qXfer:threads:read::", do: (*session).threadTable},
		{prefix: "qXfer:exec-file:read:", do: (*session).execFile},
		{prefix: "vFile:", do: (*session).file},
	}
})

// answerSupported answers the debugger's first packet: the debugger's features,
// and ours.
func (s *session) answerSupported(_ context.Context, b []byte) (string, error) {
	for f := range strings.SplitSeq(strings.TrimPrefix(string(b), ":"), ";") {
		switch f {
		case "swbreak+", "hwbreak+":
			s.breaks = true
		case "error-message+":
			s.messages = true
		}
	}
	answer := fmt.Sprintf("PacketSize=%x;QStartNoAckMode+;vContSupported+;swbreak+;hwbreak+;QNonStop-;"+
		"qXfer:features:read+;qXfer:threads:read+", packetSize)
	if s.t.Program().File != nil {
		answer += ";qXfer:exec-file:read+"
	}
	return answer, nil
}

func (s *session) startNoAck(context.Context, []byte) (string, error) {
	// The answer is still acknowledged; a later acknowledgement does no harm.
	s.noAck = true
	return "OK", nil
}

// detach leaves the guest, which resumes.
func (s *session) detach(context.Context, []byte) (string, error) {
	s.detached = true
	if err := s.t.Detach(false); err != nil {
		return s.failure(err, false), errDone
	}
	return "OK", errDone
}

// kill leaves the guest as it is, without an answer: a debugger must not end the
// guest.
func (s *session) kill(context.Context, []byte) (string, error) {
	s.detached = true
	if err := s.t.Detach(true); err != nil {
		s.log.Warn("a debugger's kill", "err", err)
	}
	return noReply, errDone
}

// monitor has the target run a user's command, and sends the output.
func (s *session) monitor(ctx context.Context, b []byte) (string, error) {
	line := make([]byte, len(b)/2)
	if !unhex(line, b) {
		return "", errBad
	}
	w := console{s}
	if s.strange != "" {
		fmt.Fprintln(w, s.strange)
		s.strange = ""
	}
	ctx, end := s.hear(ctx, s.readWhileWaiting)
	defer end()
	if err := s.t.Monitor(ctx, string(line), w); err != nil {
		fmt.Fprintln(w, err)
		return "E01", nil
	}
	return "OK", nil
}

// readWhileWaiting reads the debugger's input while it waits for an answer:
// acknowledgements of console output, an interrupt, or the end of the
// connection. Other input is left to the next reader.
func (s *session) readWhileWaiting() (stop, more bool) {
	switch b, err := s.in.Peek(1); {
	case err != nil:
		return true, false
	case b[0] == interrupt:
		_, _ = s.in.Discard(1)
		return true, false
	case b[0] != '+':
		return false, false
	}
	_, _ = s.in.Discard(1)
	return false, true
}

// console sends the output of a monitor command, in pieces.
type console struct{ s *session }

func (c console) Write(b []byte) (int, error) {
	const piece = packetSize/2 - 1
	for at := 0; at < len(b); at += piece {
		if err := c.s.reply("O" + hex.EncodeToString(b[at:min(at+piece, len(b))])); err != nil {
			return at, err
		}
	}
	return len(b), nil
}

// slice answers a request for a part, OFFSET,LENGTH, of a document.
func slice(doc string, b []byte) (string, error) {
	var offset, length uint64
	if !numbers(b, &offset, &length) {
		return "", errBad
	}
	if offset >= uint64(len(doc)) {
		return "l", nil
	}
	rest := doc[offset:]
	n, room := 0, packetSize-1
	for n < len(rest) && uint64(n) < length {
		if room -= escapedLen(rest[n]); room < 0 {
			break
		}
		n++
	}
	if n == len(rest) {
		return "l" + rest, nil
	}
	return "m" + rest[:n], nil
}

// guestFile is the name of the guest's program for debuggers.
const guestFile = "/guest"

func (s *session) execFile(_ context.Context, b []byte) (string, error) {
	if _, at, ok := bytes.Cut(b, []byte(":")); ok {
		return slice(guestFile, at)
	}
	return "", errBad
}

// offsets returns the address of a program whose file does not have its
// addresses.
func (s *session) offsets(context.Context, []byte) (string, error) {
	if base := s.t.Program().Base; base != 0 {
		return fmt.Sprintf("TextSeg=%x", base), nil
	}
	return "", nil
}

// symbol asks a debugger that has symbols for the landmark's address. If the
// address is wrong, it keeps a message about that.
func (s *session) symbol(_ context.Context, b []byte) (string, error) {
	p := s.t.Program()
	value, name, _ := bytes.Cut(b, []byte(":"))
	if len(name) == 0 {
		if p.Landmark == "" {
			return "OK", nil
		}
		return "qSymbol:" + hex.EncodeToString([]byte(p.Landmark)), nil
	}
	if at, ok := number(value); ok && at != p.At {
		s.strange = fmt.Sprintf("the debugger's file has %s at %#x, the guest at %#x: it is another program's, or was read before the guest had come to its place ('symbol-file' with '-o OFFSET' moves it)", p.Landmark, at, p.At)
		s.log.Warn("a debugger's symbols are not the guest's", "symbol", p.Landmark, "debugger", fmt.Sprintf("%#x", at), "guest", fmt.Sprintf("%#x", p.At))
	}
	return "OK", nil
}
