package machine

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestRemapped: a guest maps the page of a probe to other memory with the same bytes and back, while the probe is attached, enabled, disabled,
// armed and disarmed, and saved. No byte of the engine's stays in either.
func TestRemapped(t *testing.T) {
	code, fn := counting(1 << 20)
	t.Run("kernel", func(t *testing.T) { testRemapped(t, tinyGuest(t, code, nil, fn), fn.name) })
	t.Run("user", func(t *testing.T) { testRemapped(t, builtinImage(t), "user_hot") })
}

func testRemapped(t *testing.T, img *guest.Image, symbol string) {
	m := newMachine(t, Config{Image: img, Memory: 16 << 20, Tick: -1})
	e := m.Engine()
	fn, err := img.Lookup(symbol)
	if err != nil {
		t.Fatal(err)
	}
	addr := fn.Addr
	const other = guest.GPA(9 << 20)
	tables := guest.NewAddressSpace(m.mem.Memory, m.booted.Load().state.Root)
	was, err := tables.Translate(addr)
	if err != nil {
		t.Fatal(err)
	}
	var page [2][]byte
	for i, pa := range []guest.GPA{was.PA &^ (guest.PageSize - 1), other} {
		if page[i], err = m.mem.Slice(pa, guest.PageSize); err != nil {
			t.Fatal(err)
		}
	}
	copy(page[1], page[0])
	want := string(page[0])
	table, err := tables.Table(addr, 1)
	if err != nil {
		t.Fatal(err)
	}
	entry, err := m.mem.Slice(table+guest.GPA(addr>>12&511)*8, 8)
	if err != nil {
		t.Fatal(err)
	}
	first := binary.LittleEndian.Uint64(entry)
	flip := func() {
		now := binary.LittleEndian.Uint64(entry)
		if now == first {
			now = uint64(other) | first&(guest.PageSize-1) | first&(1<<63)
		} else {
			now = first
		}
		binary.LittleEndian.PutUint64(entry, now)
	}
	clean := func(what string) {
		t.Helper()
		for i := range page {
			if string(page[i]) != want {
				t.Fatalf("%s: bytes are left in frame %d", what, i)
			}
		}
	}
	hasInt3 := func(page [][]byte, at guest.GVA) bool {
		return page[0][at%guest.PageSize] == 0xcc || page[1][at%guest.PageSize] == 0xcc
	}
	for n := range 3 {
		k := &probe.Kprobe{Symbol: symbol, Pre: func(*probe.Context) int { return 0 }}
		for _, c := range []struct {
			what    string
			on, off func() error
		}{
			{"detached", func() error { return e.Register(k) }, func() error { return e.Unregister(k) }},
			{"disabled", func() error { k = &probe.Kprobe{Symbol: symbol, Pre: k.Pre}; return e.Register(k) }, func() error { return e.Disable(k) }},
			{"disabled again", func() error { return e.Enable(k) }, func() error { return e.Disable(k) }},
			{"disarmed", func() error { return e.Enable(k) }, func() error { return e.DisarmAll() }},
			{"disarmed again", func() error { return e.ArmAll() }, func() error { return e.DisarmAll() }},
			{"detached at last", func() error { return e.ArmAll() }, func() error { return e.Unregister(k) }},
		} {
			what := fmt.Sprintf("round %d, %s", n, c.what)
			if err := c.on(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			// Whose int3 it is where the guest has it now, and no more when it has other memory there.
			root, at := m.booted.Load().state.Root, addr
			if e.Armed() {
				if !hasInt3(page[:], addr) {
					t.Fatalf("%s: no int3 is in either frame", what)
				}
				if _, _, ok := e.SiteAt(root, at); !ok {
					t.Errorf("%s: the int3 is taken for the guest's own", what)
				}
			}
			flip()
			if _, _, ok := e.SiteAt(root, at); fn.User && e.Armed() && ok {
				t.Errorf("%s: other memory is taken for the probe's", what)
			}
			save(t, m)
			if err := c.off(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			clean(what)
		}
	}
}
