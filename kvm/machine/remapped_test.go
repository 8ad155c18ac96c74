package machine

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestRemapped: a guest maps the page of a probe to other memory with the same bytes and back, while the probe is attached, enabled, disabled,
// armed, disarmed and saved. None of the engine's bytes remain in either memory.
func TestRemapped(t *testing.T) {
	code, fn := countingGuest(1 << 20)
	t.Run("kernel", func(t *testing.T) { testRemapped(t, tinyGuest(t, code, nil, fn), fn.name, false) })
	t.Run("kernel, optimized", func(t *testing.T) { testRemapped(t, tinyGuest(t, code, nil, fn), fn.name, true) })
	t.Run("user", func(t *testing.T) { testRemapped(t, builtinImage(t), "user_hot", false) })
}

// testRemapped attaches a probe with an int3, or, if optimized, with a jump. The choice does not depend on the host's speed.
func testRemapped(t *testing.T, img *guest.Image, symbol string, optimized bool) {
	m := newMachine(t, Config{Image: img, Memory: 16 << 20, Tick: -1, Probe: probe.Options{OptimizeDelay: -1}})
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
	opcode, patch := byte(0xcc), "int3"
	if optimized {
		opcode, patch = 0xe9, "jump"
	}
	isPatched := func() bool {
		return page[0][addr%guest.PageSize] == opcode || page[1][addr%guest.PageSize] == opcode
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
			if optimized {
				if err := e.Optimize(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
			// The patch is recognized at its current address, but not when the guest maps other memory there.
			root, at := m.booted.Load().state.Root, addr
			if e.Armed() {
				if !isPatched() {
					t.Fatalf("%s: no %s is in either frame", what, patch)
				}
				if _, _, ok := e.SiteAt(root, at); !ok {
					t.Errorf("%s: the %s is taken for the guest's own", what, patch)
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
