package api

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// AppendHit appends a hit as encoding/json writes it without escapes for HTML. It panics if Value or an argument's value cannot be JSON. Any goroutine may call it.
func AppendHit(b []byte, h *Hit) []byte {
	b = strconv.AppendInt(append(b, `{"timeNs":`...), h.TimeNS, 10)
	if h.Late {
		b = append(b, `,"late":true`...)
	}
	b = strconv.AppendInt(append(b, `,"cpu":`...), int64(h.CPU), 10)
	b = appendText(append(b, `,"probe":`...), h.Probe)
	b = strconv.AppendUint(append(b, `,"id":`...), h.ID, 10)
	b = appendText(append(b, `,"stage":`...), h.Stage)
	b = h.Addr.appendJSON(append(b, `,"addr":`...))
	b = appendText(append(b, `,"symbol":`...), h.Symbol)
	if h.Ret != 0 {
		b = h.Ret.appendJSON(append(b, `,"ret":`...))
	}
	if h.RetSymbol != "" {
		b = appendText(append(b, `,"retSymbol":`...), h.RetSymbol)
	}
	if h.DurationNS != 0 {
		b = strconv.AppendInt(append(b, `,"durationNs":`...), h.DurationNS, 10)
	}
	if len(h.Value) > 0 {
		b = appendAny(append(b, `,"value":`...), h.Value)
	}
	if h.Map != "" {
		b = appendText(append(b, `,"map":`...), h.Map)
	}
	if len(h.Data) > 0 {
		b = appendBytes(append(b, `,"data":`...), h.Data)
	}
	b = strconv.AppendUint(append(b, `,"cpl":`...), uint64(h.CPL), 10)
	if h.IRQsOff {
		b = append(b, `,"irqsOff":true`...)
	}
	if h.Task != nil {
		b = strconv.AppendInt(append(b, `,"task":{"pid":`...), int64(h.Task.PID), 10)
		b = append(appendText(append(b, `,"comm":`...), h.Task.Comm), '}')
	}
	for i := range h.Args {
		b = appendArg(append(b, begin(i, `,"args":[`)...), &h.Args[i])
	}
	if len(h.Args) > 0 {
		b = append(b, ']')
	}
	if len(h.Regs) > 0 {
		b = append(b, `,"regs":`...)
		for i, name := range slices.Sorted(maps.Keys(h.Regs)) {
			b = h.Regs[name].appendJSON(append(appendText(append(b, begin(i, "{")...), name), ':'))
		}
		b = append(b, '}')
	}
	for i := range h.Stack {
		b = appendFrame(append(b, begin(i, `,"stack":[`)...), &h.Stack[i])
	}
	if len(h.Stack) > 0 {
		b = append(b, ']')
	}
	return append(appendText(append(b, `,"text":`...), h.Text), '}')
}

// begin returns the text before element i: first, or a comma.
func begin(i int, first string) string {
	if i > 0 {
		return ","
	}
	return first
}

func appendArg(b []byte, a *Arg) []byte {
	b = appendText(append(b, `{"name":`...), a.Name)
	b = appendText(append(b, `,"type":`...), a.Type)
	b = appendAny(append(b, `,"value":`...), a.Value)
	b = appendText(append(b, `,"text":`...), a.Text)
	if a.Cut {
		b = append(b, `,"cut":true`...)
	}
	if len(a.Raw) > 0 {
		b = appendAny(append(b, `,"raw":`...), a.Raw)
	}
	return append(b, '}')
}

func appendFrame(b []byte, f *Frame) []byte {
	b = f.Addr.appendJSON(append(b, `{"addr":`...))
	b = appendText(append(b, `,"symbol":`...), f.Symbol)
	if f.Name != "" {
		b = appendText(append(b, `,"name":`...), f.Name)
	}
	if f.Source != "" {
		b = appendText(append(b, `,"source":`...), f.Source)
	}
	if f.User {
		b = append(b, `,"user":true`...)
	}
	if f.Inlined {
		b = append(b, `,"inlined":true`...)
	}
	return append(b, '}')
}

// appendText appends a string.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c == 0x7f || c >= utf8.RuneSelf {
			return appendAny(b, s)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

func appendBytes(b, data []byte) []byte {
	return append(base64.StdEncoding.AppendEncode(append(b, '"'), data), '"')
}

// appendAny appends any value.
func appendAny(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case uint64:
		return strconv.AppendUint(b, v, 10)
	case float64:
		const exact = 1 << 53
		if n := int64(v); v >= -exact && v <= exact && float64(n) == v && (n != 0 || !math.Signbit(v)) {
			return strconv.AppendInt(b, n, 10)
		}
	}
	w := sliceWriter{b}
	enc := json.NewEncoder(&w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("BUG: a hit's value: " + err.Error())
	}
	return w.b[:len(w.b)-1] // without the newline
}

// sliceWriter appends to b.
type sliceWriter struct{ b []byte }

// Write appends.
func (w *sliceWriter) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	return len(p), nil
}

// appendJSON appends the wire form as a JSON string.
func (h Hex) appendJSON(b []byte) []byte {
	const digits = "0123456789abcdef"
	b = append(b, `"0x`...)
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, digits[h>>shift&15])
	}
	return append(b, '"')
}
