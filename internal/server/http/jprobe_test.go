package http

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestJprobeArguments: a jprobe's record has the arguments that the System V ABI
// says, from registers and from the stack, each once.
func TestJprobeArguments(t *testing.T) {
	h := serveFake(t, nil)
	s := h.stream(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:j schedule a=$arg2:s32 arg3=%ax:u8 back=$stack0", Args: 8}}})
	p := next[api.Start](h, s, api.RecordStart).Probes[0]
	if want := "p:kprobes/j schedule a=$arg2:s32 arg3=%ax:u8 back=$stack0 arg1=$arg1 _arg3=$arg3 arg4=$arg4 arg5=$arg5 arg6=$arg6 arg7=$arg7 arg8=$arg8"; p.Kind != "j" || p.Def != want || p.Mirror != "" {
		t.Errorf("listed as %+v, want a jprobe %s", p, want)
	}
	sp := fakeStack + 8<<10 + 8
	var stack []byte
	for _, w := range []uint64{0x1234, 107, 108} {
		stack = binary.LittleEndian.AppendUint64(stack, w)
	}
	if err := h.g.WriteMemory(0, sp, stack); err != nil {
		t.Fatal(err)
	}
	minus := int64(-2)
	if !h.g.hit(t, 1, "schedule", p.Offset, func(r *probe.Regs) {
		r.RDI, r.RSI, r.RDX, r.RCX, r.R8, r.R9, r.RAX, r.RSP = 101, uint64(minus), 103, 104, 105, 106, 7, uint64(sp)
	}) {
		t.Fatal("not hit")
	}
	hit := next[api.Hit](h, s, api.RecordHit)
	got := map[string]string{}
	for _, a := range hit.Args {
		got[a.Name] = a.Text
	}
	want := map[string]string{
		"a": "-2", "arg3": "7", "back": "0x1234", "arg1": "0x65", "_arg3": "0x67", "arg4": "0x68", "arg5": "0x69", "arg6": "0x6a", "arg7": "0x6b", "arg8": "0x6c",
	}
	if d := cmp.Diff(want, got); d != "" || hit.Stage != "pre" || hit.Addr != api.Hex(p.Addr) {
		t.Errorf("hit %+v; args (-want +got):\n%s", hit, d)
	}
}

// TestJprobeMirror: a hit sends the vCPU to the mirror, and the mirror's end to
// the probed function as it was entered; the listing names the mirror and shows no
// probe at its end.
func TestJprobeMirror(t *testing.T) {
	h := serveFake(t, nil)
	ps, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:j do_fork", Mirror: "jdo_fork", MirrorStack: 17})
	if err != nil {
		t.Fatal(err)
	}
	if p := ps[0]; p.Kind != "j" || p.Mirror != "jdo_fork" || p.MirrorStack != 24 || p.Def != "p:kprobes/j do_fork" {
		t.Errorf("listed as %+v", p)
	}
	var at probe.Regs
	h.g.hit(t, 0, "do_fork", ps[0].Offset, func(r *probe.Regs) { r.RDI = 5; at = *r })
	mirror, err := h.g.img.Lookup("jdo_fork")
	if err != nil {
		t.Fatal(err)
	}
	end, err := h.g.img.Lookup("jprobe_return")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := h.g.At(end.Addr, 1); err != nil || b[0] != 0xcc {
		t.Errorf("no breakpoint at the mirror's end: % x, %v", b, err)
	}
	if list, err := h.c.Probes(h.ctx); err != nil || len(list) != 1 {
		t.Errorf("%d probes listed, %v", len(list), err)
	}
	regs := at
	regs.RDI, regs.RIP = 99, uint64(end.Addr)
	v := h.g.Deliver(0, probe.State{Regs: &regs}, probe.Trap{Kind: probe.TrapBreakpoint})
	if v.Action != probe.Resume || regs.RDI != 5 || guest.GVA(regs.RIP) == mirror.Addr {
		t.Errorf("behind the mirror: %+v, %+v", v, regs)
	}
	if p, err := h.c.Probe(h.ctx, "j"); err != nil || p.Stats.Handled != 1 || p.Stats.SecondExits != 1 {
		t.Errorf("counts %+v, %v", p.Stats, err)
	}
}

// TestJprobeRefused: options that do not fit, each with its code.
func TestJprobeRefused(t *testing.T) {
	h := serveFake(t, nil)
	for _, c := range []struct {
		spec api.ProbeSpec
		code api.Code
	}{
		{api.ProbeSpec{Def: "p schedule", Args: -1}, api.CodeBadValue},
		{api.ProbeSpec{Def: "p schedule", Args: api.MaxArgs + 1}, api.CodeBadValue},
		{api.ProbeSpec{Def: "p schedule", MirrorStack: 16}, api.CodeBadValue},
		{api.ProbeSpec{Def: "p schedule", MirrorEnd: "jprobe_return"}, api.CodeBadValue},
		{api.ProbeSpec{Def: "p do_fork", Mirror: "jdo_fork", MirrorStack: probe.MaxJprobeStack + 1}, api.CodeBadValue},
		{api.ProbeSpec{Def: "p do_fork", Mirror: "jdo_fork", MirrorStack: -1}, api.CodeBadValue},
		{api.ProbeSpec{Def: "r schedule", Args: 1}, api.CodeUnavailable},
		{api.ProbeSpec{Def: "w w@jiffies", Args: 1}, api.CodeUnavailable},
		{api.ProbeSpec{Def: "p schedule", Args: 1, Post: true}, api.CodeUnavailable},
		{api.ProbeSpec{Def: "p do_fork", Mirror: "nope"}, "symbol_not_found"},
		{api.ProbeSpec{Def: "p do_fork", Mirror: "jdo_fork", MirrorEnd: "nope"}, "symbol_not_found"},
		{api.ProbeSpec{Def: "p do_fork", Mirror: "jprobe_calls"}, "not_text"},
	} {
		good := api.ProbeSpec{Def: "p:good vfs_read"}
		_, err := h.c.Attach(h.ctx, good, c.spec)
		var wire *api.Error
		if !errors.As(err, &wire) || wire.Code != c.code || wire.Index == nil || *wire.Index != 1 {
			t.Errorf("%+v: %+v, want %s of the second probe", c.spec, err, c.code)
		}
	}
	for _, def := range []string{"p do_fork+9", "p do_fork+0x10 $arg1"} {
		if ps, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: def, Args: 1}); err == nil {
			t.Errorf("%s: a jprobe inside a function: %+v", def, ps)
		}
	}
	if n := len(h.s.probes.Probes()); n != 0 {
		t.Errorf("%d probes are attached", n)
	}
}
