package api

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
)

// DecodeText is an error of encoding/json in words of JSON rather than of Go: which field has a value of the wrong kind, and
// what it must be.
func DecodeText(err error) string {
	var e *json.UnmarshalTypeError
	if !errors.As(err, &e) {
		return strings.TrimPrefix(err.Error(), "json: ")
	}
	where := "it"
	if e.Field != "" {
		where = fmt.Sprintf("field %q", e.Field[strings.LastIndexByte(e.Field, '.')+1:])
	}
	text := reflect.TypeFor[encoding.TextUnmarshaler]()
	want := "a number"
	switch kind := e.Type.Kind(); {
	case kind == reflect.String || reflect.PointerTo(e.Type).Implements(text):
		want = "a string"
	case kind == reflect.Bool:
		want = "true or false"
	case kind == reflect.Slice:
		want = "an array"
	case kind == reflect.Struct || kind == reflect.Map:
		want = "an object"
	case !strings.HasPrefix(e.Value, "number "): // whatever number
	case kind >= reflect.Int && kind <= reflect.Int64:
		most := int64(math.MaxInt64) >> (64 - e.Type.Bits())
		want = fmt.Sprintf("a whole number from %d to %d", -most-1, most)
	case kind >= reflect.Uint && kind <= reflect.Uint64:
		want = fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-e.Type.Bits()))
	}
	return fmt.Sprintf("%s must be %s, not %s", where, want, e.Value)
}
