package http

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestMapKinds: the API names all kinds of maps that there are.
func TestMapKinds(t *testing.T) {
	field, _ := reflect.TypeFor[api.MapInfo]().FieldByName("Kind")
	_, list, _ := strings.Cut(field.Tag.Get("openapi"), "enum=")
	var want []string
	for k := range bpf.MapKind(32) {
		if name := k.String(); !strings.HasPrefix(name, "map type") {
			want = append(want, name)
		}
	}
	if got := strings.Split(list, "|"); len(want) < 18 || !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
