package http

import (
	"errors"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestWithoutChanged: text that the guest has changed under a probe is no reason for the daemon to fail at its end, and all else is.
func TestWithoutChanged(t *testing.T) {
	changed, other := &probe.Error{Code: probe.CodeTextChanged}, errors.New("other")
	wrap := func(errs ...error) error {
		return fmt.Errorf("close: %w", errors.Join(fmt.Errorf("close probe engine: %w", errors.Join(errs...)), nil))
	}
	for _, x := range []struct {
		err, want error
	}{
		{nil, nil}, {changed, nil}, {wrap(changed, changed), nil}, {wrap(changed, other), other}, {wrap(other), other}, {other, other},
	} {
		if got := dropChanged(x.err); !errors.Is(got, x.want) || (got == nil) != (x.want == nil) {
			t.Errorf("%v: %v, want %v", x.err, got, x.want)
		}
	}
}

// TestOwnText: differences from the image are the guest's own where it may write its text, and nowhere else.
func TestOwnText(t *testing.T) {
	img := &guest.Image{Segments: []guest.Segment{{VAddr: 0x1000, MemSize: 0x1000, X: true}, {VAddr: 0x3000, MemSize: 0x1000, X: true, W: true}}}
	for _, x := range []struct {
		places []api.TextRange
		want   bool
	}{
		{[]api.TextRange{{Addr: 0x3000, Live: "90"}}, true},
		{[]api.TextRange{{Addr: 0x3000, Live: "90"}, {Addr: 0x3ffe, Live: "9090"}}, true},
		{[]api.TextRange{{Addr: 0x3fff, Live: "9090"}}, false},
		{[]api.TextRange{{Addr: 0x3000, Live: "90"}, {Addr: 0x1000, Live: "90"}}, false},
		{[]api.TextRange{{Addr: 0x9000, Live: "90"}}, false},
	} {
		if got := isOwnText(img, x.places); got != x.want {
			t.Errorf("%+v: %t", x.places, got)
		}
	}
}
