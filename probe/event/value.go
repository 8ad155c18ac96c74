package event

import (
	"encoding/json"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Value is one argument of a record.
type Value struct {
	Name string
	Type Type
	Data []Datum // one, or Type.Count of them
}

// Datum is one captured value.
type Datum struct {
	Fault bool   // the guest's memory could not be read; the rest is zero
	Cut   bool   // some text of this argument was longer than a record can hold
	Bits  uint64 // the number, zero-extended; for text 0
	Text  string // the guest's text, or the name of a symbol
}

// maxExact is the largest magnitude up to which every integer is exact as a float64,
// the number type of many JSON readers.
const maxExact = 1 << 53

// signedValue returns the number of a Signed datum.
func (t Type) signedValue(bits uint64) int64 {
	shift := 64 - 8*t.Size
	return int64(bits<<shift) >> shift
}

// JSON returns the value for JSON: an integer of magnitude up to 2^53 as a number, a
// larger one as a decimal string, text as a string, the address of a symbol as an
// integer, an array as an array, and an unreadable value as nil.
func (v Value) JSON() any {
	if v.Type.Count == 0 && len(v.Data) == 1 {
		return v.Data[0].json(v.Type)
	}
	all := make([]any, len(v.Data))
	for i, d := range v.Data {
		all[i] = d.json(v.Type)
	}
	return all
}

func (d Datum) json(t Type) any {
	switch {
	case d.Fault:
		return nil
	case t.HasText():
		return d.Text
	case t.Format == SymStr:
		return string(t.appendSymbol(nil, d))
	case t.Format == Signed:
		n := t.signedValue(d.Bits)
		if -maxExact <= n && n <= maxExact {
			return n
		}
		return strconv.FormatInt(n, 10)
	case d.Bits > maxExact:
		return strconv.FormatUint(d.Bits, 10)
	}
	return d.Bits
}

// cut reports whether some text was longer than a record can hold.
func (v Value) cut() bool {
	return slices.ContainsFunc(v.Data, func(d Datum) bool { return d.Cut })
}

// RawTexts returns the bytes of the texts if some are not valid UTF-8, which JSON
// cannot hold, and nil otherwise.
func (v Value) RawTexts() [][]byte {
	if !slices.ContainsFunc(v.Data, func(d Datum) bool { return !utf8.ValidString(d.Text) }) {
		return nil
	}
	raw := make([][]byte, len(v.Data))
	for i, d := range v.Data {
		raw[i] = []byte(d.Text)
	}
	return raw
}

// MarshalJSON returns name, type, value (see JSON), the text in ftrace's format and,
// unless empty, cut and raw (in base64).
func (v Value) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name  string   `json:"name"`
		Type  string   `json:"type"`
		Value any      `json:"value"`
		Text  string   `json:"text"`
		Cut   bool     `json:"cut,omitempty"`
		Raw   [][]byte `json:"raw,omitempty"`
	}{v.Name, v.Type.String(), v.JSON(), string(v.AppendText(nil)), v.cut(), v.RawTexts()})
}

// AppendText appends the value as ftrace prints it after "name=". strconv.Unquote
// turns texts and characters back into the same bytes.
func (v Value) AppendText(b []byte) []byte {
	if v.Type.Count > 0 {
		b = append(b, '{')
	}
	for i, d := range v.Data {
		if i > 0 {
			b = append(b, ',')
		}
		b = v.Type.append(b, d)
	}
	if v.Type.Count > 0 {
		b = append(b, '}')
	}
	return b
}

func (t Type) append(b []byte, d Datum) []byte {
	if d.Fault {
		return append(b, "(fault)"...)
	}
	switch t.Format {
	case Unsigned, Bits:
		return strconv.AppendUint(b, d.Bits, 10)
	case Signed:
		return strconv.AppendInt(b, t.signedValue(d.Bits), 10)
	case Char:
		return AppendQuoted(b, '\'', string([]byte{byte(d.Bits)}))
	case Symbol:
		return t.appendSymbol(b, d)
	case SymStr:
		return AppendQuoted(b, '"', string(t.appendSymbol(nil, d)))
	case String, UString:
		return AppendQuoted(b, '"', d.Text)
	}
	return strconv.AppendUint(append(b, "0x"...), d.Bits, 16)
}

// appendSymbol appends the name of an address, or the address if it has no name.
func (t Type) appendSymbol(b []byte, d Datum) []byte {
	if d.Text != "" {
		return append(b, d.Text...)
	}
	return strconv.AppendUint(append(b, "0x"...), d.Bits, 16)
}

// AppendQuoted appends guest text between quotes. Unlike ftrace it writes control
// characters and bytes that are not UTF-8 as \xNN, so that a guest can neither break
// a line nor send escape sequences to a terminal. It also puts a backslash before
// backslashes and such quotes, so that no text looks like another one, or like its
// end and the text after it.
func AppendQuoted(b []byte, quote byte, s string) []byte {
	b = append(b, quote)
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1 || !strconv.IsPrint(r):
			for i := range n {
				const hex = "0123456789abcdef"
				b = append(b, '\\', 'x', hex[s[i]>>4], hex[s[i]&15])
			}
		case s[0] == '\\' || s[0] == quote:
			b = append(b, '\\', s[0])
		default:
			b = append(b, s[:n]...)
		}
		s = s[n:]
	}
	return append(b, quote)
}
