package http

import (
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// patchingGuest is a guest whose image is one of a kernel that patches itself.
type patchingGuest struct {
	*fakeGuest
	image *probetest.Kernel
}

func (g patchingGuest) Image() guest.View { return g.image }

// TestSymbolsAdvice is about the route of symbols: a request for types that the guest does not have fails with the way to get them, for a
// Linux kernel and for an image.
func TestSymbolsAdvice(t *testing.T) {
	for _, tt := range []struct {
		name  string
		linux bool
		want  string
	}{
		{"image", false, "its image has no BTF: build it with clang -g -gbtf, or add it with pahole -J"},
		{"Linux", true, "the kernel has no BTF: boot one that is built with CONFIG_DEBUG_INFO_BTF=y"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeGuest(t, 1)
			f.types = nil
			var g Guest = f
			if tt.linux {
				g = patchingGuest{f, &probetest.Kernel{Image: f.img}}
			}
			h := newHarness(t).serve(g, defaultOptions())
			var got *api.Error
			if _, err := h.c.Symbols(h.ctx, remote.SymbolQuery{Match: "vfs_read", Types: true}); !errors.As(err, &got) || got.Code != api.CodeUnavailable || got.Detail != tt.want {
				t.Errorf("%v, %+v; want %q", err, got, tt.want)
			}
		})
	}
}
