package bench

import (
	"context"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// hot is mov eax, edi; add eax, esi; ret: a leaf function as compilers emit it.
var hot = []byte{0x89, 0xf8, 0x01, 0xf0, 0xc3}

func TestSpread(t *testing.T) {
	for _, tc := range []struct {
		in   []float64
		want Spread
	}{
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{4, 2}, Spread{2, 3, 4}},
		{[]float64{9, 1, 5}, Spread{1, 5, 9}},
	} {
		if got := spread(tc.in); got != tc.want {
			t.Errorf("spread(%v) = %v, want %v", tc.in, got, tc.want)
		}
	}
}

// TestUprobePeer: the peer either measures, with the kernel's own count equal
// to the calls made, or says why it can't.
func TestUprobePeer(t *testing.T) {
	p := uprobePeer(context.Background(), hot, 2, 1000)
	if p.Unavailable != "" {
		if p.NsPerHit != nil || p.Hits != 0 {
			t.Errorf("unavailable (%s), and yet figures: %+v", p.Unavailable, p)
		}
		return
	}
	if p.Hits != 2000 || p.NsPerHit == nil || p.NsPerHit.Median <= 0 {
		t.Errorf("uprobe peer: %+v, want 2000 hits and a positive time", p)
	}
}

// TestGDBPeer: likewise for the debugger's way, QEMU's and ours.
func TestGDBPeer(t *testing.T) {
	kvmtest.Require(t)
	for _, p := range []Peer{roundTrips(t.Context(), 2, 50), gdbPeer(t.Context(), 2, 50), measureStub(t.Context(), "", 2, 50)} {
		if p.Unavailable != "" {
			if p.NsPerHit != nil || p.Hits != 0 || p.Name != "qemu-gdbstub" {
				t.Errorf("%s: unavailable (%s), and yet figures: %+v", p.Name, p.Unavailable, p)
			}
			continue
		}
		if p.Hits != 100 || len(p.Packets) != 3 || p.NsPerHit == nil || p.NsPerHit.Median <= 0 {
			t.Errorf("%+v, want 100 hits and a positive time", p)
		}
		t.Logf("%s: %v, %v", p.Name, *p.NsPerHit, p.Packets)
	}
}
