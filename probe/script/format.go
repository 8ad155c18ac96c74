package script

import (
	"fmt"
	"strconv"
	"strings"
)

// format is a parsed format of printf.
type format struct {
	parts []part
	args  int
}

// part is text, or a conversion.
type part struct {
	text   string // text before the conversion
	flags  string
	width  int
	prec   int // -1: unset
	length string
	conv   string    // "": only text
	gfp    *gfpFlags // of %gr
}

// parseFormat parses a format; wrong is the error, if any.
func parseFormat(s string) (f *format, wrong string) {
	f = &format{}
	var text strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			text.WriteByte(s[i])
			continue
		}
		if i+1 < len(s) && s[i+1] == '%' {
			text.WriteByte('%')
			i++
			continue
		}
		begin := i
		p := part{text: text.String(), prec: -1}
		text.Reset()
		run := func(set string) string {
			from := i + 1
			for i+1 < len(s) && strings.IndexByte(set, s[i+1]) >= 0 {
				i++
			}
			return s[from : i+1]
		}
		p.flags = run("-+ #0")
		number := func() (n int, ok bool) {
			d := run("0123456789")
			if d == "" {
				return 0, true
			}
			n, err := strconv.Atoi(d)
			return n, err == nil && n <= 1024
		}
		var ok bool
		if p.width, ok = number(); !ok {
			return nil, fmt.Sprintf("printf: width of %q: at most 1024", s[begin:i+1])
		}
		if i+1 < len(s) && s[i+1] == '.' {
			i++
			if p.prec, ok = number(); !ok {
				return nil, fmt.Sprintf("printf: precision of %q: at most 1024", s[begin:i+1])
			}
		}
		p.length = run("hljzt")
		if i++; strings.HasPrefix(s[min(i, len(s)):], "gr") {
			i++
			f.parts, f.args = append(f.parts, part{text: p.text, flags: p.flags, width: p.width, prec: p.prec, conv: "gr"}), f.args+1
			continue
		}
		if i >= len(s) || strings.IndexByte("diuoxXcspr", s[i]) < 0 {
			return nil, fmt.Sprintf("printf: unknown format %q", s[begin:min(i+1, len(s))])
		}
		switch p.length {
		case "", "hh", "h", "l", "ll", "j", "z", "t":
		default:
			return nil, fmt.Sprintf("printf: unknown length %q", p.length)
		}
		p.conv = s[i : i+1]
		if p.conv == "r" && i+1 < len(s) && (s[i+1] == 'x' || s[i+1] == 'h') {
			i++
			p.conv += s[i : i+1]
		}
		f.parts = append(f.parts, p)
		f.args++
	}
	if text.Len() > 0 {
		f.parts = append(f.parts, part{text: text.String()})
	}
	return f, ""
}

// checkTypes returns the error for arguments of these types, or "".
func (f *format) checkTypes(ts []Type) string {
	if len(ts) != f.args {
		few := "not enough"
		if len(ts) > f.args {
			few = "too many"
		}
		return fmt.Sprintf("%s arguments for format string (%d supplied, %d expected)", few, len(ts), f.args)
	}
	n := 0
	for _, p := range f.parts {
		if p.conv == "" {
			continue
		}
		t := ts[n]
		n++
		switch {
		case t.Kind == None || p.conv == "s":
		case p.conv[0] == 'r' && t.Kind != Buffer:
			return fmt.Sprintf("unsupported format specifier for type '%s': %s", t, p.conv)
		case p.conv[0] != 'r' && (!t.isNumber() || t.is(KStack, UStack)):
			return fmt.Sprintf("unsupported format specifier for type '%s': %s", t, p.conv)
		}
	}
	return ""
}

// render prints the arguments, which are in data one after the other and formatted by
// text.
func (f *format) render(ts []Type, data []byte, text func(Type, []byte) string) string {
	var b strings.Builder
	for _, p := range f.parts {
		b.WriteString(p.text)
		if p.conv == "" {
			continue
		}
		t, n := ts[0], ts[0].bytes()
		b.WriteString(p.formatValue(t, data[:n], text))
		ts, data = ts[1:], data[n:]
	}
	return b.String()
}

// formatValue prints one argument.
func (p *part) formatValue(t Type, data []byte, text func(Type, []byte) string) string {
	switch p.conv {
	case "s":
		s := text(t, data)
		if p.prec >= 0 {
			s = s[:min(p.prec, len(s))]
		}
		return p.pad(s)
	case "r", "rx", "rh":
		return p.pad(bufferText(p.conv, bufferOf(data)))
	case "gr":
		return p.pad(p.gfp.text(word(data)))
	case "c":
		return p.pad(string([]byte{data[0]}))
	}
	return p.integer(word(data))
}

// pad fills up to the width with blanks.
func (p *part) pad(s string) string {
	if n := p.width - len(s); n > 0 {
		if strings.Contains(p.flags, "-") {
			return s + strings.Repeat(" ", n)
		}
		return strings.Repeat(" ", n) + s
	}
	return s
}

// bits is the number of bits that the length modifier selects.
func (p *part) bits() uint {
	switch p.length {
	case "hh":
		return 8
	case "h":
		return 16
	case "":
		if p.conv != "p" {
			return 32
		}
	}
	return 64
}

// integer prints a number as C does (ISO C, 7.23.6.1).
func (p *part) integer(v uint64) string {
	shift := 64 - p.bits()
	sign, digits := "", ""
	switch p.conv {
	case "d", "i":
		n := int64(v<<shift) >> shift
		if n < 0 {
			sign, v = "-", -uint64(n)
		} else {
			v = uint64(n)
			if strings.Contains(p.flags, "+") {
				sign = "+"
			} else if strings.Contains(p.flags, " ") {
				sign = " "
			}
		}
		digits = strconv.FormatUint(v, 10)
	default:
		v = v << shift >> shift
		base := map[string]int{"u": 10, "o": 8, "x": 16, "X": 16, "p": 16}[p.conv]
		digits = strconv.FormatUint(v, base)
		alternate := strings.Contains(p.flags, "#") && v != 0
		switch {
		case p.conv == "p", alternate && p.conv == "x":
			sign = "0x"
		case alternate && p.conv == "X":
			sign = "0X"
		case alternate && p.conv == "o":
			digits = "0" + digits
		}
		if p.conv == "X" {
			digits = strings.ToUpper(digits)
		}
	}
	if p.prec == 0 && v == 0 {
		digits = ""
	}
	if n := p.prec - len(digits); n > 0 {
		digits = strings.Repeat("0", n) + digits
	}
	if n := p.width - len(sign) - len(digits); n > 0 && p.prec < 0 && strings.Contains(p.flags, "0") && !strings.Contains(p.flags, "-") {
		digits = strings.Repeat("0", n) + digits
	}
	return p.pad(sign + digits)
}

// bufferText prints bytes: conversion r prints letters as they are.
func bufferText(conv string, data []byte) string {
	var b strings.Builder
	for i, c := range data {
		switch {
		case conv == "rh" && i > 0:
			fmt.Fprintf(&b, " %02x", c)
		case conv == "rh":
			fmt.Fprintf(&b, "%02x", c)
		case conv == "r" && c >= ' ' && c < 0x7f:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "\\x%02x", c)
		}
	}
	return b.String()
}
