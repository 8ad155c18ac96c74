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

// valueOf returns the value of an argument: a number by its type, the text of a
// string, or for another kind the text that ftrace prints.
func valueOf(prefix string, a *api.Arg) value {
	v := value{name: prefix + a.Name, text: a.Text}
	if n, ok := a.Number(); ok {
		v.number, v.kind = n, kindOf(a.Type[0])
	} else if each := a.Strings(); len(each) == 1 && !strings.Contains(a.Type, "[") {
		v.text = string([]rune(each[0])) // viewers read UTF-8
	}
	return v
}

// kindOf returns the kind of a number by the first letter of its type.
func kindOf(letter byte) valueKind {
	switch letter {
	case 's':
		return valueSigned
	case 'u':
		return valueUnsigned
	case 'x':
		return valueHex
	}
	return valueText
}

// nameOf returns symbol, or the address if it is empty.
func nameOf(symbol string, addr api.Hex) string {
	if symbol != "" {
		return symbol
	}
	return "0x" + strconv.FormatUint(uint64(addr), 16)
}

// maxData is how many bytes of a program's record are shown.
const maxData = 256

// values appends an event's values, which are shown in addition to its name.
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
		out = append(out, value{name: "to", text: nameOf(h.RetSymbol, h.Ret)})
	}
	if e.kind == itemSlice {
		out = append(out, value{name: "probe", text: h.Probe})
	} else {
		out = append(out, value{name: "at", text: nameOf(h.Symbol, h.Addr)})
	}
	out = append(out, value{name: "vcpu", kind: valueUnsigned, number: uint64(h.CPU)})
	for _, r := range x86.RegNames {
		if n, ok := h.Regs[r]; ok {
			out = append(out, value{name: r, kind: valueHex, number: uint64(n)})
		}
	}
	return out
}

// functionName returns a frame's function, without the offset in it.
func functionName(f api.Frame) string {
	name, _, _ := strings.Cut(f.Symbol, "+")
	return nameOf(name, f.Addr)
}

// cutLine splits FILE:LINE.
func cutLine(source string) (file string, line uint64, ok bool) {
	i := strings.LastIndexByte(source, ':')
	if i < 0 {
		return "", 0, false
	}
	line, err := strconv.ParseUint(source[i+1:], 10, 32)
	return source[:i], line, err == nil
}
