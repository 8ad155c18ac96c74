package timeline

import (
	"cmp"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// value is a captured value: a number, or text.
type value struct {
	name   string
	text   string
	number uint64
	kind   valueKind
}

type valueKind uint8

const (
	valueText valueKind = iota
	valueSigned
	valueUnsigned
	valueHex
)

// valueOf reads an argument by its text, which is ftrace's.
func valueOf(prefix string, a *api.Arg) value {
	v := value{name: prefix + a.Name, text: a.Text}
	switch {
	case strings.HasPrefix(a.Type, "s") && isNumber(a.Type[1:]):
		if n, err := strconv.ParseInt(a.Text, 10, 64); err == nil {
			v.kind, v.number = valueSigned, uint64(n)
		}
	case strings.HasPrefix(a.Type, "u") && isNumber(a.Type[1:]):
		if n, err := strconv.ParseUint(a.Text, 10, 64); err == nil {
			v.kind, v.number = valueUnsigned, n
		}
	case strings.HasPrefix(a.Type, "x") && isNumber(a.Type[1:]):
		if n, err := strconv.ParseUint(a.Text, 0, 64); err == nil {
			v.kind, v.number = valueHex, n
		}
	case a.Type == "string" || a.Type == "ustring":
		if s, ok := a.Value.(string); ok {
			v.text = s
		} else if s, err := strconv.Unquote(a.Text); err == nil {
			v.text = s
		}
	}
	return v
}

// isNumber reports whether s is the width of a number's type.
func isNumber(s string) bool { return s == "8" || s == "16" || s == "32" || s == "64" }

// maxData is how many bytes of a program's record are shown.
const maxData = 256

// values appends what an event shows beside its name.
func values(out []value, e *item) []value {
	if e.task != nil {
		out = append(out, value{name: "task", text: e.task.Comm}, value{name: "pid", kind: valueSigned, number: uint64(e.task.PID)})
	}
	h := e.hit
	if h == nil {
		return out
	}
	for i := range h.Args {
		out = append(out, valueOf("", &h.Args[i]))
	}
	for i := range e.entry {
		out = append(out, valueOf("entry.", &e.entry[i]))
	}
	switch {
	case h.Stage == "program":
		if len(h.Value) > 0 {
			out = append(out, value{name: cmp.Or(h.Map, "value"), text: string(h.Value)})
		} else if len(h.Data) > 0 {
			out = append(out, value{name: cmp.Or(h.Map, "data"), text: hex.EncodeToString(h.Data[:min(len(h.Data), maxData)])})
		}
	case h.Stage == "return":
		out = append(out, value{name: "to", text: cmp.Or(h.RetSymbol, "0x"+strconv.FormatUint(uint64(h.Ret), 16))})
	}
	if e.kind == itemSlice {
		out = append(out, value{name: "probe", text: h.Probe})
	} else {
		out = append(out, value{name: "at", text: cmp.Or(h.Symbol, "0x"+strconv.FormatUint(uint64(h.Addr), 16))})
	}
	out = append(out, value{name: "vcpu", kind: valueUnsigned, number: uint64(h.CPU)})
	for _, r := range x86.RegNames {
		if n, ok := h.Regs[r]; ok {
			out = append(out, value{name: r, kind: valueHex, number: uint64(n)})
		}
	}
	return out
}

// functionName is a frame without the place in its function.
func functionName(f api.Frame) string {
	name, _, _ := strings.Cut(f.Symbol, "+")
	return cmp.Or(name, "0x"+strconv.FormatUint(uint64(f.Addr), 16))
}

// cutLine takes FILE:LINE apart.
func cutLine(source string) (file string, line uint64, ok bool) {
	i := strings.LastIndexByte(source, ':')
	if i < 0 {
		return "", 0, false
	}
	line, err := strconv.ParseUint(source[i+1:], 10, 32)
	return source[:i], line, err == nil
}
