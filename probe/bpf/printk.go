package bpf

import (
	"bytes"
	"strconv"
)

// Limits of trace_printk.
const (
	maxFormat = 256
	maxLine   = 1024 // as in Linux (MAX_BPRINTF_BUF)
	maxString = 128  // of one %s
)

// tracePrintk is trace_printk (format, size, three values). It takes %d %i %u
// %x %X %p %c %s and %%, with the length modifiers h, l, ll and z, flags and
// widths; %s reads a string of the guest. It returns the bytes printed.
func (v *VM) tracePrintk(r *[16]uint64) FaultCode {
	args := [3]uint64{r[R3], r[R4], r[R5]}
	return v.printLine(r, args[:])
}

// printLine prints a line to the trace: its format is the first two arguments.
func (v *VM) printLine(r *[16]uint64, args []uint64) FaultCode {
	n := r[R2]
	if n == 0 || n > maxFormat {
		r[R0] = errno(errInval)
		return NoFault
	}
	format := v.mem(r[R1], n)
	if format == nil {
		return v.badArg(FaultMemArg, r[R1])
	}
	if i := bytes.IndexByte(format, 0); i >= 0 {
		format = format[:i]
	}
	line, ok := v.format(v.line[:0], format, args)
	if !ok {
		r[R0] = errno(errInval)
		return NoFault
	}
	line = line[:min(len(line), maxLine)]
	v.env.Trace(line)
	r[R0] = uint64(len(line))
	return NoFault
}

// verb is one conversion of a format.
type verb struct {
	zero, left, alt bool
	width           int
	long            bool // 64 bits
	what            byte
}

func (v *VM) format(out, format []byte, args []uint64) ([]byte, bool) {
	next := 0
	for len(format) > 0 {
		if format[0] != '%' {
			if len(out) < maxLine {
				out = append(out, format[0])
			}
			format = format[1:]
			continue
		}
		var f verb
		var ok bool
		if f, format, ok = parseVerb(format[1:]); !ok {
			return nil, false
		}
		if f.what == '%' {
			out = append(out, '%')
			continue
		}
		if next == len(args) {
			return nil, false
		}
		out = v.convert(out, f, args[next])
		next++
		out = out[:min(len(out), maxLine)]
	}
	return out, true
}

func parseVerb(s []byte) (f verb, rest []byte, ok bool) {
	for ; len(s) > 0; s = s[1:] {
		switch c := s[0]; {
		case c == '0' && f.width == 0:
			f.zero = true
		case c == '-':
			f.left = true
		case c == '#':
			f.alt = true
		case c >= '0' && c <= '9':
			f.width = min(f.width*10+int(c-'0'), maxString)
		case c == 'l' || c == 'z':
			f.long = true
		case c == 'h' || c == '+' || c == ' ':
		default:
			f.what = c
			s = s[1:]
			if c == 'p' {
				s = f.pointer(s)
			}
			return f, s, bytes.IndexByte([]byte("diuxXpcs%"), f.what) >= 0
		}
	}
	return f, nil, false
}

// pointer reads the suffix of %p: texts of the kernel and of user code (ks, us). For
// suffixes by which Linux prints an address or its name it prints the address.
func (f *verb) pointer(s []byte) []byte {
	switch {
	case len(s) > 1 && (s[0] == 'k' || s[0] == 'u') && s[1] == 's':
		f.what = 's'
		return s[2:]
	case len(s) > 0 && bytes.IndexByte([]byte("KxsSB"), s[0]) >= 0:
		return s[1:]
	}
	return s
}

// convert appends one value. It must not allocate.
func (v *VM) convert(out []byte, f verb, x uint64) []byte {
	start := len(out)
	signed := int64(x)
	if !f.long && f.what != 'p' && f.what != 's' {
		x, signed = uint64(uint32(x)), int64(int32(x))
	}
	switch f.what {
	case 'd', 'i':
		out = strconv.AppendInt(out, signed, 10)
	case 'u':
		out = strconv.AppendUint(out, x, 10)
	case 'x', 'X', 'p':
		if f.alt || f.what == 'p' {
			out = append(out, "0x"...)
		}
		out = strconv.AppendUint(out, x, 16)
		if f.what == 'X' {
			upper(out[start:])
		}
	case 'c':
		out = append(out, byte(x))
	case 's':
		n, _ := v.readStr(HelperProbeReadStr, x, v.str[:])
		if n < 0 {
			out = append(out, "(fault)"...)
		} else {
			out = append(out, v.str[:n-1]...)
		}
		f.zero = false
	}
	pad := f.width - (len(out) - start)
	if pad <= 0 {
		return out
	}
	fill := byte(' ')
	if f.zero && !f.left {
		fill = '0'
	}
	for range pad {
		out = append(out, fill)
	}
	if f.left {
		return out
	}
	body := out[start:]
	copy(body[pad:], body[:len(body)-pad])
	for i := range pad {
		body[i] = fill
	}
	if fill == '0' && body[pad] == '-' {
		body[0], body[pad] = '-', '0'
	}
	return out
}

func upper(b []byte) {
	for i, c := range b {
		if c >= 'a' && c <= 'f' {
			b[i] = c - 'a' + 'A'
		}
	}
}
