package http

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// isOwnText reports whether all of these places are text that the guest's program may write.
func isOwnText(v guest.View, places []api.TextRange) bool {
	img, ok := v.(*guest.Image)
	if !ok {
		return false
	}
	writable := func(at guest.GVA) bool {
		for i := range img.Segments {
			if s := &img.Segments[i]; s.Contains(at) {
				return s.W
			}
		}
		return false
	}
	for _, p := range places {
		if last := guest.GVA(p.Addr) + guest.GVA(max(1, len(p.Live)/2)-1); !writable(guest.GVA(p.Addr)) || !writable(last) {
			return false
		}
	}
	return true
}

// dropChanged removes errors about text that the guest has changed under a
// probe. The engine has logged them, the bytes belong to the guest, and at the
// guest's end there is nothing left to do about them.
func dropChanged(err error) error {
	switch x := err.(type) {
	case *probe.Error:
		if x.Code == probe.CodeTextChanged || x.Code == probe.CodeForeignInt3 {
			return nil
		}
	case interface{ Unwrap() []error }:
		var left []error
		for _, err := range x.Unwrap() {
			left = append(left, dropChanged(err))
		}
		return errors.Join(left...)
	case interface{ Unwrap() error }:
		if inner := x.Unwrap(); inner != nil && dropChanged(inner) == nil {
			return nil
		}
	}
	return err
}
