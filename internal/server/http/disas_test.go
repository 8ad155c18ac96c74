package http

import (
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestDisas lists functions over the socket: whole, without gaps, the same for
// every way to name them.
func TestDisas(t *testing.T) {
	h := serveFake(t, nil)
	want, err := h.c.Disas(h.ctx, "vfs_read", false)
	if err != nil {
		t.Fatal(err)
	}
	if want.Symbol != "vfs_read" || want.Offset != 0 || len(want.Insts) == 0 || want.Undecodable != "" {
		t.Fatalf("got %+v", want)
	}
	img := h.g.Image()
	var next uint64
	for _, i := range want.Insts {
		b, err := hex.DecodeString(i.Bytes)
		if err != nil || i.Offset != next || i.Addr != want.Addr+api.Hex(i.Offset) || string(b) != string(img.Code(guest.GVA(i.Addr), len(b))) {
			t.Errorf("at %#x: %+v, want offset %#x", i.Offset, i, next)
		}
		next += uint64(len(b))
		for _, r := range []api.DisasRegion{i.Ours, i.Kernel} {
			if (r.Length == 0) == (r.Reason == "") {
				t.Errorf("at %#x: region %+v", i.Offset, r)
			}
		}
	}
	if next < want.Size {
		t.Errorf("the list ends at %#x of %#x", next, want.Size)
	}
	second := want.Insts[1]
	for at, offset := range map[string]uint64{
		fmt.Sprintf("vfs_read+%d", second.Offset): second.Offset, fmt.Sprintf("vfs_read+%#x", second.Offset): second.Offset,
		fmt.Sprintf("%#x", uint64(second.Addr)): second.Offset, fmt.Sprint(uint64(want.Addr)): 0,
	} {
		d, err := h.c.Disas(h.ctx, at, false)
		if err != nil || d.Symbol != "vfs_read" || d.Offset != offset || len(d.Insts) != len(want.Insts) {
			t.Errorf("%s: %+v, %v", at, d, err)
		}
	}
	for at, code := range map[string]api.Code{
		"": "bad_value", "nonsense": "symbol_not_found", "vfs_read+4096": "offset_outside", "0x10": "no_symbol_at_address",
		"vfs_bytes_read": "not_text", "mix_step": "ambiguous_symbol", "vfs_read+x": "symbol_not_found",
	} {
		_, err := h.c.Disas(h.ctx, at, false)
		var wire *api.Error
		if !errors.As(err, &wire) || wire.Code != code {
			t.Errorf("%q: got %v, want %s", at, err, code)
		}
	}
}

// TestDisasEverything lists every function of the built-in guest.
func TestDisasEverything(t *testing.T) {
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	var dis Disassembler
	blacklisted := false
	for _, s := range img.Symbols() {
		if s.Kind != guest.SymFunc || s.Size == 0 {
			continue
		}
		d, err := dis.Function(img, fmt.Sprint(uint64(s.Addr)))
		if err != nil || d.Undecodable != "" || len(d.Insts) == 0 {
			t.Errorf("%s: %d instructions, %q, %v", s.Name, len(d.Insts), d.Undecodable, err)
		}
		for _, i := range d.Insts {
			refused := i.Kind == "refused" && i.Reason == "blacklisted" && i.Ours.Reason == "blacklisted" && i.Kernel.Reason == "blacklisted"
			if want := img.BlacklistReason(guest.GVA(i.Addr)) != ""; refused != want {
				t.Errorf("%s+%#x: %+v, blacklisted %v", s.Name, i.Offset, i, want)
			}
			blacklisted = blacklisted || refused
		}
	}
	if !blacklisted {
		t.Error("no function of the guest is blacklisted")
	}
}
