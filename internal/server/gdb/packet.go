package gdb

import (
	"bufio"
	"fmt"
	"io"
)

// packetSize is the maximum length of a packet's data, between its $ and its #.
const packetSize = 16 << 10

// interrupt is the byte that a debugger sends when its user types ^C (GDB
// manual, E.10).
const interrupt = 0x03

// event is the next input: a packet's data, an interrupt, or an acknowledgement.
type event struct {
	data      []byte // of a packet; not nil
	damaged   bool   // a packet whose checksum is wrong, or that is too long
	interrupt bool
	ack, nak  bool
}

// readEvent reads up to the end of the next event. It skips bytes between
// events.
func readEvent(r *bufio.Reader) (event, error) {
	for {
		c, err := r.ReadByte()
		if err != nil {
			return event{}, err
		}
		switch c {
		case interrupt:
			return event{interrupt: true}, nil
		case '+':
			return event{ack: true}, nil
		case '-':
			return event{nak: true}, nil
		case '$':
			return readPacket(r)
		}
	}
}

// readPacket reads the rest of a packet after its $, and undoes its escapes.
func readPacket(r *bufio.Reader) (event, error) {
	data, sum, tooLong := []byte{}, byte(0), false
	escaped := false
	for {
		c, err := r.ReadByte()
		if err != nil {
			return event{}, err
		}
		switch {
		case c == '$': // the sender has started over
			data, sum, escaped, tooLong = data[:0], 0, false, false
			continue
		case c == '#':
			var hex [2]byte
			if _, err := io.ReadFull(r, hex[:]); err != nil {
				return event{}, err
			}
			var want [1]byte
			ok := unhex(want[:], hex[:]) && want[0] == sum && !tooLong && !escaped
			return event{data: data, damaged: !ok}, nil
		}
		sum += c
		if len(data) == packetSize {
			tooLong = true
			continue
		}
		switch {
		case escaped:
			data, escaped = append(data, c^0x20), false
		case c == '}':
			escaped = true
		default:
			data = append(data, c)
		}
	}
}

// appendPacket appends a packet with data, escaped.
func appendPacket[T string | []byte](b []byte, data T) []byte {
	b = append(b, '$')
	start := len(b)
	for i := range len(data) {
		if c := data[i]; escapedLen(c) > 1 {
			b = append(b, '}', c^0x20)
		} else {
			b = append(b, c)
		}
	}
	var sum byte
	for _, c := range b[start:] {
		sum += c
	}
	return fmt.Appendf(b, "#%02x", sum)
}

// escapedLen returns how many bytes appendPacket writes for c.
func escapedLen(c byte) int {
	if c == '$' || c == '#' || c == '}' || c == '*' {
		return 2
	}
	return 1
}
