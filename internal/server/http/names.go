package http

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// checkNames rejects fields of a body that encoding/json accepts when it decodes
// the body into a value of type t: a field whose name differs in case, and a
// field that is given twice, of which the last would count. Half of a request
// must not be carried out.
func checkNames(b []byte, t reflect.Type) error {
	return (&nameChecker{json.NewDecoder(bytes.NewReader(b))}).value(t)
}

// nameChecker walks one JSON value that is known to be well formed.
type nameChecker struct{ dec *json.Decoder }

// value walks the next value, which is decoded into type t; nil means a type
// whose fields are not checked.
func (c *nameChecker) value(t reflect.Type) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	tok, err := c.dec.Token()
	if err != nil {
		return bodyError(err)
	}
	switch tok {
	case json.Delim('['):
		elem := elemType(t)
		for c.dec.More() {
			if err := c.value(elem); err != nil {
				return err
			}
		}
	case json.Delim('{'):
		if err := c.object(t); err != nil {
			return err
		}
	default:
		return nil
	}
	_, err = c.dec.Token() // the closing delimiter
	return err
}

// object walks the fields of an object.
func (c *nameChecker) object(t reflect.Type) error {
	seen := map[string]bool{}
	for c.dec.More() {
		tok, err := c.dec.Token()
		if err != nil {
			return bodyError(err)
		}
		name, _ := tok.(string)
		if seen[name] {
			return &api.Error{Code: api.CodeBadJSON, Errno: "EINVAL", Message: fmt.Sprintf("body is not what the route takes: field %q is given twice", name)}
		}
		seen[name] = true
		field, err := fieldType(t, name)
		if err != nil {
			return err
		}
		if err := c.value(field); err != nil {
			return err
		}
	}
	return nil
}

// elemType returns the type of the elements of a list or map of type t.
func elemType(t reflect.Type) reflect.Type {
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array || t.Kind() == reflect.Map) {
		return t.Elem()
	}
	return nil
}

// fieldType returns the type of the field that has exactly this name.
func fieldType(t reflect.Type, name string) (reflect.Type, error) {
	if t == nil || t.Kind() != reflect.Struct {
		return elemType(t), nil
	}
	for _, f := range reflect.VisibleFields(t) {
		own, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case own == name:
			return f.Type, nil
		case strings.EqualFold(own, name):
			return nil, &api.Error{Code: api.CodeUnknownField, Errno: "EINVAL", Message: fmt.Sprintf("unknown field %q: it is written %q", name, own)}
		}
	}
	return nil, nil
}
