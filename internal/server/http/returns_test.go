package http

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestReturnRecord is about a stream: the record of a return has fields of its own, and the listing tells of calls. TestReturnProbe of
// probe/session has the probe.
func TestReturnRecord(t *testing.T) {
	h := serveFake(t, nil)
	s := h.stream(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "r5:back fib_recursive ret=$retval:s64 a=$arg1:u64"}}})
	start := next[api.Start](h, s, api.RecordStart)
	p := start.Probes[0]
	if p.Kind != "r" || p.MaxActive != 5 || p.InUse != 0 || p.Def != "r5:kprobes/back fib_recursive ret=$retval:s64 a=$arg1:u64" {
		t.Errorf("listed as %+v", p)
	}
	caller, err := h.g.img.Lookup("do_wait")
	if err != nil {
		t.Fatal(err)
	}
	ret := caller.Addr + 0x10
	sp := fakeStack + 8<<10 + 8
	word := binary.LittleEndian.AppendUint64(nil, uint64(ret))
	if err := h.g.WriteMemory(0, sp, word); err != nil {
		t.Fatal(err)
	}
	if !h.g.hit(t, 0, "fib_recursive", p.Offset, func(r *probe.Regs) { r.RDI, r.RSP = 42, uint64(sp) }) {
		t.Fatal("not hit")
	}
	in, err := h.c.Probe(h.ctx, "back")
	if err != nil || in.InUse != 1 || in.HighWater != 1 || in.Stats.Handled != 1 || in.Stats.Returns != 0 {
		t.Errorf("while the call is under way: %+v, %v", in, err)
	}
	if err := h.g.ReadMemory(0, sp, word); err != nil {
		t.Fatal(err)
	}
	minus := int64(-11)
	regs := &probe.Regs{RIP: binary.LittleEndian.Uint64(word), RSP: uint64(sp) + 8, RAX: uint64(minus), RFLAGS: 0x202}
	v := h.g.Deliver(1, probe.State{Regs: regs}, probe.Trap{Kind: probe.TrapBreakpoint})
	if v.Action != probe.Resume || guest.GVA(regs.RIP) != ret {
		t.Errorf("the function returns to %#x, %+v", regs.RIP, v)
	}
	hit := next[api.Hit](h, s, api.RecordHit)
	if hit.Stage != "return" || hit.CPU != 1 || hit.Addr != api.Hex(p.Addr) || hit.Ret != api.Hex(ret) || hit.RetSymbol != "do_wait+0x10" || hit.DurationNS <= 0 {
		t.Errorf("hit %+v", hit)
	}
	wantArgs := []api.Arg{{Name: "ret", Type: "s64", Value: -11.0, Text: "-11"}, {Name: "a", Type: "u64", Value: 42.0, Text: "42"}}
	if d := cmp.Diff(wantArgs, hit.Args); d != "" {
		t.Errorf("args (-want +got):\n%s", d)
	}
	if want := fmt.Sprintf("(do_wait+0x10/0x%x <- fib_recursive) ret=-11 a=42", caller.Size); hit.Text != want {
		t.Errorf("text %q, want %q", hit.Text, want)
	}
	out, err := h.c.Probe(h.ctx, "back")
	if err != nil || out.InUse != 0 || out.HighWater != 1 || out.Stats.Returns != 1 || out.Stats.Abandoned != 0 || out.Stats.Events != 1 {
		t.Errorf("afterwards: %+v, %v", out, err)
	}
}
