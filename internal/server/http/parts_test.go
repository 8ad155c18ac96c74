package http

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestFunctionParts: where a function is missing that the compiler has made others of, the error names these.
func TestFunctionParts(t *testing.T) {
	img, err := guest.ParseELF(bytes.ReplaceAll(builtin.ELF(), []byte("\x00vfs_write\x00"), []byte("\x00vf.isra.0\x00")))
	if err != nil {
		t.Fatal(err)
	}
	o := defaultOptions()
	o.vcpus = 1
	h := serveGuest(t, newFakeGuestOf(t, img, 1), o)
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:a vf"}); err == nil || !strings.Contains(err.Error(), "the compiler has made vf.isra.0 of it: probe these") {
		t.Errorf("%v", err)
	}
	if _, err := h.c.RunScript(h.ctx, api.RunScript{Script: "kprobe:vf { @++; }"}); err == nil || !strings.Contains(err.Error(), "the compiler has made vf.isra.0 of it: write kprobe:vf.isra.0") {
		t.Errorf("%v", err)
	}
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:a vf.isra.0"}); err != nil {
		t.Error(err)
	}
}

// TestRetsByAddress attaches to the returns of the function at an address, and says which address is in none.
func TestRetsByAddress(t *testing.T) {
	h := serveMachine(t, 1)
	sym, err := h.s.guest.Image().Lookup("vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: fmt.Sprintf("r:x %#x", uint64(sym.Addr)), AtRets: true}); err != nil {
		t.Error(err)
	}
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "r:y 0xffffffff70000000", AtRets: true}); err == nil || strings.Contains(err.Error(), `""`) {
		t.Errorf("%v", err)
	}
}

// TestLongNames: names of events that are made of long names of functions differ where these do.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("f", 61)
	seen := map[string]bool{}
	for _, fn := range []string{long, long + "_a", long + "_b", long + "_longer_yet", long + "_a.part.0"} {
		d, err := event.Parse("p " + fn)
		if err != nil {
			t.Fatal(err)
		}
		if seen[d.Event] || len(d.Event) > 63 {
			t.Errorf("%s: %s", fn, d.Event)
		}
		seen[d.Event] = true
	}
}
