package api_test

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestArgValues: numbers and texts of every kind are the same after a transfer.
func TestArgValues(t *testing.T) {
	wire := func(v event.Value) (a api.Arg) {
		t.Helper()
		data, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(data, &a)
		}
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, f := range []event.Format{event.Signed, event.Unsigned, event.Hex} {
		for _, size := range []int{1, 2, 4, 8} {
			for _, bits := range []uint64{0, 1, 127, 128, 255, 1 << 31, 1<<53 - 1, 1 << 53, 1<<53 + 1, 1 << 63, math.MaxUint64, math.MaxUint64 - 41} {
				shift := 64 - 8*size
				bits = bits << shift >> shift
				want := bits
				if f == event.Signed {
					want = uint64(int64(bits<<shift) >> shift)
				}
				a := wire(event.Value{Name: "n", Type: event.Type{Format: f, Size: size}, Data: []event.Datum{{Bits: bits}}})
				if n, ok := a.Number(); !ok || n != want || a.Strings() != nil {
					t.Errorf("%s %#x: %#x, %v, %q", a.Type, bits, n, ok, a.Strings())
				}
			}
		}
	}
	for _, texts := range [][]string{{""}, {"a\"b\\"}, {"\xff\x00é"}, {"12"}, {"a", "", "\xfe"}} {
		kind := event.Type{Format: event.String}
		if len(texts) > 1 {
			kind.Count = len(texts)
		}
		v := event.Value{Name: "s", Type: kind}
		for _, s := range texts {
			v.Data = append(v.Data, event.Datum{Text: s})
		}
		a := wire(v)
		if got := a.Strings(); !slices.Equal(got, texts) {
			t.Errorf("%s %q: %q", a.Type, texts, got)
		}
		if n, ok := a.Number(); ok {
			t.Errorf("%s %q: the number %d", a.Type, texts, n)
		}
		v.Data[len(texts)-1] = event.Datum{Fault: true}
		if a := wire(v); a.Strings() != nil {
			t.Errorf("%q with a fault: %q", texts, a.Strings())
		}
	}
	for _, a := range []api.Arg{{Type: "u64"}, {Type: "u64", Value: "x"}, {Type: "u8[2]", Value: []any{1.0, 2.0}}, {Type: "b3@2/32", Value: 1.0}, {Type: "symbol", Value: 1.0}, {}} {
		if n, ok := a.Number(); ok || a.Strings() != nil {
			t.Errorf("%+v: %d, %q", a, n, a.Strings())
		}
	}
}
