package http

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// mem reads memory as a debugger.
func (d *stub) mem(at uint64, n int) []byte {
	d.Helper()
	b, err := hex.DecodeString(d.ask(fmt.Sprintf("m%x,%x", at, n)))
	if err != nil || len(b) != n {
		d.Fatalf("%d bytes at %#x: %x, %v", n, at, b, err)
	}
	return b
}

// TestBreakpointsAndProbes: breakpoints are where probes are, in their jumps too, and both are hit. Of the
// engine's memory, and of what it has changed, a debugger gets nothing.
func TestBreakpointsAndProbes(t *testing.T) {
	h := serveMachine(t, 1)
	hot, read := h.symbol("user_hot"), h.symbol("vfs_read")
	h.attach("p:jump user_hot a=%di", "r:ret vfs_read", "p:before vfs_read")
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "w:total rw@vfs_bytes_read:8", Emulate: true}); err != nil {
		t.Fatal(err)
	}
	h.await("jump", "optimized", func(p api.Probe) bool { return p.Optimized })
	live, err := h.c.Memory(h.ctx, remote.Where{At: "user_hot"}, remote.MemoryQuery{Length: 16, Live: true})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := hex.DecodeString(live.Data)
	own := h.s.guest.Image().Code(guest.GVA(hot), 16)
	jump := strings.IndexByte(string(text), 0xe9)
	if jump < 0 || string(text) == string(own) {
		t.Fatalf("no jump in % x", text)
	}
	detour := hot + uint64(jump) + 5 + uint64(int64(int32(binary.LittleEndian.Uint32(text[jump+1:]))))

	d := h.debug()
	check := func() {
		t.Helper()
		if got := d.mem(hot, 16); string(got) != string(own) {
			t.Errorf("user_hot is % x, not % x", got, own)
		}
	}
	check()
	for _, packet := range []string{"Z0,%x,1", "Z1,%x,1", "M%x,1:90", "X%x,1:A"} {
		if got := d.ask(fmt.Sprintf(packet, detour)); !strings.HasPrefix(got, "E") {
			t.Errorf("%s in the engine's memory: %s", packet, got)
		}
	}
	// At the probe, and behind its first instruction, where its jump is.
	first := d.breakAt("Z0", "user_hot")
	for range 3 {
		d.expect("c", "T05thread:1;")
		if got := d.reg(regRIP); got != first {
			t.Errorf("stopped at %#x, not %#x", got, first)
		}
	}
	d.expect("s", "T05")
	inside := d.reg(regRIP)
	d.expect(fmt.Sprintf("Z0,%x,1", inside), "OK")
	for _, want := range []uint64{inside, first, inside, first} { // a breakpoint that it stands at comes first
		d.expect("c", "T05")
		if got := d.reg(regRIP); got != want {
			t.Errorf("stopped at %#x, not %#x", got, want)
		}
	}
	check()
	d.expect(fmt.Sprintf("z0,%x,1", inside), "OK")
	d.breakAt("z0", "user_hot")

	// A function that returns through a trampoline: its stack is the guest's.
	d.breakAt("Z0", "vfs_read")
	d.expect("c", "T05")
	if got := d.reg(regRIP); got != read {
		t.Errorf("stopped at %#x, not %#x", got, read)
	}
	d.breakAt("z0", "vfs_read")
	for range 4 {
		d.expect("s", "T05")
	}
	d.expect(fmt.Sprintf("Z2,%x,8", h.symbol("vfs_bytes_read")), "OK") // beside the other's
	before := binary.LittleEndian.Uint64(d.mem(h.symbol("vfs_bytes_read"), 8))
	d.expect("c", fmt.Sprintf("T05thread:1;core:0;watch:%x;", h.symbol("vfs_bytes_read")))
	if now := binary.LittleEndian.Uint64(d.mem(h.symbol("vfs_bytes_read"), 8)); now == before {
		t.Errorf("a watchpoint, and the word is %d still", now)
	}
	stack := d.mem(d.reg(regRSP), 512)
	for at := 0; at+8 <= len(stack); at += 8 {
		if w := binary.LittleEndian.Uint64(stack[at:]); w>>20 == detour>>20 {
			t.Errorf("rsp+%#x: %#x is the engine's", at, w)
		}
	}
	d.expect(fmt.Sprintf("z2,%x,8", h.symbol("vfs_bytes_read")), "OK")

	// More watchpoints than there are debug registers: each is there, or refused.
	at := h.symbol("user_hot_calls")
	var set []uint64
	for i := range uint64(8) {
		switch got := d.ask(fmt.Sprintf("Z2,%x,8", at+8*i)); {
		case got == "OK":
			set = append(set, at+8*i)
		case !strings.HasPrefix(got, "E"):
			t.Errorf("watchpoint %d: %s", i, got)
		}
	}
	if len(set) < 3 { // the other's takes one
		t.Errorf("%d watchpoints", len(set))
	}
	d.expect("c", fmt.Sprintf("T05thread:1;core:0;watch:%x;", at))
	for _, w := range set {
		d.expect(fmt.Sprintf("z2,%x,8", w), "OK")
	}
	d.expect("D", "OK")
	for _, name := range []string{"jump", "ret", "before", "total"} {
		p, err := h.c.Probe(h.ctx, name)
		if err != nil || p.Stats.Hits == 0 || p.Stats.Hits != p.Stats.Handled+p.Stats.Filtered+p.Stats.Missed {
			t.Errorf("%s: %+v, %v", name, p.Stats, err)
		}
	}
	if _, err := h.c.DetachAll(h.ctx); err != nil {
		t.Fatal(err)
	}
	h.checkResumed()
}
