package script

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// bufferOf is the contents of a buffer.
func bufferOf(data []byte) []byte { return data[8:][:min(word(data), uint64(len(data)-8))] }

// stringOf is a string up to its final zero.
func stringOf(data []byte) string {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		data = data[:i]
	}
	return string(data)
}

// stringText is a string with the trailer of the settings if it was truncated: then it
// fills its type, without a final zero.
func (p *Printer) stringText(t Type, data []byte) string {
	s := stringOf(data[:min(t.Size, len(data))])
	if len(s) == t.Size && t.Size > 0 && p.s != nil {
		s += p.s.c.config.trailer
	}
	return s
}

// text prints a value as bpftrace does.
func (p *Printer) text(t Type, data []byte) string {
	switch t.Kind {
	case Int:
		if name := t.enumeratorName(word(data)); name != "" {
			return name
		}
		if t.Signed {
			return strconv.FormatInt(int64(word(data)), 10)
		}
		return strconv.FormatUint(word(data), 10)
	case Bool:
		return strconv.FormatBool(word(data) != 0)
	case Pointer:
		return fmt.Sprintf("%#x", word(data))
	case String:
		return p.stringText(t, data)
	case Buffer:
		return bufferText("r", bufferOf(data))
	case KSym:
		return p.symbol(word(data))
	case KStack, UStack:
		return p.stack(t, word(data))
	case Errno:
		return errorText(int64(word(data)))
	case Signal:
		return signalText(int64(word(data)))
	case Syscall:
		return syscallText(int64(word(data)))
	case Timestamp:
		return strftime(t.Format, p.wall(int64(word(data))))
	case Inet:
		return inetText(data)
	case MAC:
		return strings.ToUpper(net.HardwareAddr(data[:6]).String())
	case Tuple:
		if !t.isTuple() {
			return p.record(t, data, false)
		}
		return "(" + p.elements(t, data) + ")"
	case Struct, Array:
		return p.cValue(t, data, false)
	}
	return "null"
}

// inetText is an address in the notation of its family.
func inetText(data []byte) string {
	if word(data) == unix.AF_INET6 {
		return netip.AddrFrom16([16]byte(data[8:24])).String()
	}
	return netip.AddrFrom4([4]byte(data[8:12])).String()
}

// wall is the wall-clock time of a time on the clock of nsecs.
func (p *Printer) wall(ns int64) time.Time { return time.Unix(0, p.s.epoch+ns) }

// elements prints the elements of a tuple, without its parentheses.
func (p *Printer) elements(t Type, data []byte) string {
	var parts []string
	for i, e := range t.Elems {
		parts = append(parts, p.text(e, data[t.offset(i):][:e.bytes()]))
	}
	return strings.Join(parts, ", ")
}

// json prints a value as JSON.
func (p *Printer) json(t Type, data []byte) string {
	switch t.Kind {
	case Int:
		if t.Signed {
			return jsonInt(int64(word(data)))
		}
		return jsonUint(word(data))
	case Bool:
		return strconv.FormatBool(word(data) != 0)
	case Pointer:
		return jsonUint(word(data))
	case Tuple:
		if !t.isTuple() {
			return p.record(t, data, true)
		}
		var parts []string
		for i, e := range t.Elems {
			parts = append(parts, p.json(e, data[t.offset(i):][:e.bytes()]))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case Struct, Array:
		return p.cValue(t, data, true)
	}
	return jsonText(p.text(t, data))
}

// jsonKey prints the key of a map: without parentheses and blanks between its parts.
func (p *Printer) jsonKey(t Type, data []byte) string {
	var parts []string
	for i, e := range t.Elems {
		d := data[t.offset(i):][:e.bytes()]
		switch {
		case e.isTuple():
			parts = append(parts, p.jsonKey(e, d))
		case e.Kind == Tuple:
			parts = append(parts, strings.ReplaceAll(p.text(e, d), " ", ""))
		default:
			parts = append(parts, p.text(e, d))
		}
	}
	return strings.Join(parts, ",")
}

// jsonText is a JSON string; bytes that are not text are replaced.
func jsonText(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, string(utf8.RuneError))
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic("BUG: a string of JSON: " + err.Error())
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// jsonInt is a number, or a string where a float64 would lose bits.
func jsonInt(v int64) string {
	s := strconv.FormatInt(v, 10)
	if f := float64(v); f >= math.MaxInt64 || int64(f) != v {
		return strconv.Quote(s)
	}
	return s
}

func jsonUint(v uint64) string {
	s := strconv.FormatUint(v, 10)
	if f := float64(v); f >= math.MaxUint64 || uint64(f) != v {
		return strconv.Quote(s)
	}
	return s
}

// errorTexts are the texts of bpftrace's strerror that differ from Go's package
// syscall, by number: all others are equal except for the case of the first letter.
var errorTexts = map[unix.Errno]string{
	unix.EIO:       "I/O error",
	unix.EBADF:     "Bad file number",
	unix.EAGAIN:    "Try again (operation would block)",
	unix.ENOMEM:    "Out of memory",
	unix.EXDEV:     "Cross-device link",
	unix.ENFILE:    "File table overflow",
	unix.ENOTTY:    "Not a typewriter",
	unix.EDOM:      "Math argument out of domain of func",
	unix.ERANGE:    "Math result not representable",
	unix.EDEADLK:   "Resource deadlock would occur",
	unix.ENOLCK:    "No record locks available",
	unix.ENOSYS:    "Invalid system call number",
	unix.ELOOP:     "Too many symbolic links encountered",
	unix.EBADMSG:   "Not a data message",
	unix.EILSEQ:    "Illegal byte sequence",
	unix.ENOTSUP:   "Operation not supported on transport endpoint",
	unix.ENETRESET: "Network dropped connection because of reset",
	unix.EDQUOT:    "Quota exceeded",
	unix.ECANCELED: "Operation Canceled",
	unix.EHWPOISON: "Memory page has hardware error",
}

// errorText is the text of strerror.
func errorText(n int64) string {
	if n == 0 {
		return "Success"
	}
	if n < 0 || n > int64(unix.EHWPOISON) || unix.ErrnoName(unix.Errno(n)) == "" {
		return "Unknown error"
	}
	if s, ok := errorTexts[unix.Errno(n)]; ok {
		return s
	}
	s := unix.Errno(n).Error()
	return strings.ToUpper(s[:1]) + s[1:]
}

// signalText is the text of strsignal.
func signalText(n int64) string {
	switch {
	case n >= 34 && n <= 64:
		return fmt.Sprintf("Real-time signal %d", n-34)
	case n > 64:
		return "N/A"
	case n < 1 || n > 31:
		return fmt.Sprintf("Unknown signal %d", n)
	}
	s := unix.Signal(n).String()
	return strings.ToUpper(s[:1]) + s[1:]
}
