package api

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Number returns the value of an argument of type u, s or x with a width, negative values in two's complement. ok is false for
// other types, and if the argument could not be read.
func (a *Arg) Number() (n uint64, ok bool) {
	if len(a.Type) < 2 || strings.IndexByte("usx", a.Type[0]) < 0 {
		return 0, false
	}
	switch a.Type[1:] {
	case "8", "16", "32", "64":
	default:
		return 0, false
	}
	var text string
	switch v := a.Value.(type) {
	case float64:
		if v < 0 {
			return uint64(int64(v)), true
		}
		return uint64(v), true
	case json.Number:
		text = v.String()
	case json.RawMessage:
		text = strings.Trim(string(v), `"`)
	case string:
		text = v
	default:
		return 0, false
	}
	if signed, err := strconv.ParseInt(text, 10, 64); err == nil {
		return uint64(signed), true
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// Strings returns the text of an argument of type string, ustring or symstr, or all texts of an array, with the guest's bytes. It
// returns nil for other types, and if a text could not be read.
func (a *Arg) Strings() []string {
	element, _, array := strings.Cut(a.Type, "[")
	switch element {
	case "string", "ustring", "symstr":
	default:
		return nil
	}
	values := []any{a.Value}
	if array {
		values, _ = a.Value.([]any)
	}
	var out []string
	for i, v := range values {
		s, ok := v.(string)
		if !ok {
			return nil
		}
		if i < len(a.Raw) {
			s = string(a.Raw[i])
		}
		out = append(out, s)
	}
	return out
}
