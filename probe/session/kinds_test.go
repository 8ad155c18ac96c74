package session_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// TestReturnProbe follows a call from its entry to its return on another vCPU:
// what the listing, the record and the counts say.
func TestReturnProbe(t *testing.T) {
	b := newBare(t)
	sub := b.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	p := b.attach("r5:back fib_recursive ret=$retval:s64 a=$arg1:u64")[0]
	if p.Kind != 'r' || p.Site.MaxActive != 5 || p.InUse != 0 || p.Spec.Def != "r5:kprobes/back fib_recursive ret=$retval:s64 a=$arg1:u64" {
		t.Errorf("described as %+v", p)
	}
	caller, err := b.img.Lookup("do_wait")
	if err != nil {
		t.Fatal(err)
	}
	ret := caller.Addr + 0x10
	sp := probetest.StackBase + 8<<10 + 8
	word := binary.LittleEndian.AppendUint64(nil, uint64(ret))
	if err := b.WriteMemory(0, sp, word); err != nil {
		t.Fatal(err)
	}
	b.hit(0, "fib_recursive", p.Offset, func(r *probe.Regs) { r.RDI, r.RSP = 42, uint64(sp) })
	in, err := b.s.Get("back")
	if err != nil || in.InUse != 1 || in.Site.HighWater != 1 || in.Stats.Handled != 1 || in.Stats.Returns != 0 {
		t.Errorf("while the call is under way: %+v, %v", in, err)
	}
	if err := b.ReadMemory(0, sp, word); err != nil {
		t.Fatal(err)
	}
	minus := int64(-11)
	regs := &probe.Regs{RIP: binary.LittleEndian.Uint64(word), RSP: uint64(sp) + 8, RAX: uint64(minus), RFLAGS: 0x202}
	if v := b.Deliver(1, probe.State{Regs: regs}, probe.Trap{Kind: probe.TrapBreakpoint}); v.Action != probe.Resume || guest.GVA(regs.RIP) != ret {
		t.Errorf("the function returns to %#x, %+v", regs.RIP, v)
	}
	ev, rec, text := b.next(sub)
	if rec.Moment != event.AtReturn || ev.CPU != 1 || rec.Addr != p.Addr || rec.Ret != ret || rec.Duration <= 0 {
		t.Errorf("%+v, %+v", ev, rec)
	}
	if want := fmt.Sprintf("(do_wait+0x10/0x%x <- fib_recursive) ret=-11 a=42", caller.Size); text != want {
		t.Errorf("text %q, want %q", text, want)
	}
	out, err := b.s.Get("back")
	if err != nil || out.InUse != 0 || out.Site.HighWater != 1 || out.Stats.Returns != 1 || out.Stats.Abandoned != 0 || out.Stats.Events != 1 {
		t.Errorf("afterwards: %+v, %v", out, err)
	}
}

// TestJprobeArguments: a jprobe's record has the arguments that the System V ABI
// says, from registers and from the stack, each once.
func TestJprobeArguments(t *testing.T) {
	b := newBare(t)
	sub := b.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	a, err := b.s.Attach([]session.Spec{{Def: "p:j schedule a=$arg2:s32 arg3=%ax:u8 back=$stack0", Args: 8}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := b.s.Describe(a.Probes)[0]
	if want := "p:kprobes/j schedule a=$arg2:s32 arg3=%ax:u8 back=$stack0 arg1=$arg1 _arg3=$arg3 arg4=$arg4 arg5=$arg5 arg6=$arg6 arg7=$arg7 arg8=$arg8"; p.Kind != 'j' || p.Spec.Def != want || p.MirrorStack != 0 {
		t.Errorf("described as %+v, want a jprobe %s", p, want)
	}
	sp := probetest.StackBase + 8<<10 + 8
	var stack []byte
	for _, w := range []uint64{0x1234, 107, 108} {
		stack = binary.LittleEndian.AppendUint64(stack, w)
	}
	if err := b.WriteMemory(0, sp, stack); err != nil {
		t.Fatal(err)
	}
	minus := int64(-2)
	b.hit(1, "schedule", p.Offset, func(r *probe.Regs) {
		r.RDI, r.RSI, r.RDX, r.RCX, r.R8, r.R9, r.RAX, r.RSP = 101, uint64(minus), 103, 104, 105, 106, 7, uint64(sp)
	})
	_, rec, _ := b.next(sub)
	got := map[string]string{}
	for _, v := range rec.Values {
		got[v.Name] = string(v.AppendText(nil))
	}
	want := map[string]string{
		"a": "-2", "arg3": "7", "back": "0x1234", "arg1": "0x65", "_arg3": "0x67", "arg4": "0x68", "arg5": "0x69", "arg6": "0x6a", "arg7": "0x6b", "arg8": "0x6c",
	}
	if d := cmp.Diff(want, got); d != "" || rec.Addr != p.Addr {
		t.Errorf("record %+v; args (-want +got):\n%s", rec, d)
	}
}

// TestJprobeMirror: a hit sends the vCPU to the mirror, and the mirror's end to
// the probed function as it was entered; only the jprobe is listed.
func TestJprobeMirror(t *testing.T) {
	b := newBare(t)
	a, err := b.s.Attach([]session.Spec{{Def: "p:j do_fork", Mirror: "jdo_fork", MirrorStack: 17}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := b.s.Describe(a.Probes)[0]
	if p.Kind != 'j' || p.Spec.Mirror != "jdo_fork" || p.MirrorStack != 24 || p.Spec.Def != "p:kprobes/j do_fork" {
		t.Errorf("described as %+v", p)
	}
	var at probe.Regs
	if _, err := b.Hit(0, "do_fork", p.Offset, func(r *probe.Regs) { r.RDI = 5; at = *r }); err != nil {
		t.Fatal(err)
	}
	mirror, err := b.img.Lookup("jdo_fork")
	if err != nil {
		t.Fatal(err)
	}
	end, err := b.img.Lookup("jprobe_return")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := b.BytesAt(end.Addr, 1); err != nil || text[0] != 0xcc {
		t.Errorf("no breakpoint at the mirror's end: % x, %v", text, err)
	}
	regs := at
	regs.RDI, regs.RIP = 99, uint64(end.Addr)
	if v := b.Deliver(0, probe.State{Regs: &regs}, probe.Trap{Kind: probe.TrapBreakpoint}); v.Action != probe.Resume || regs.RDI != 5 || guest.GVA(regs.RIP) == mirror.Addr {
		t.Errorf("after the mirror: %+v, %+v", v, regs)
	}
	if i, err := b.s.Get("j"); err != nil || i.Stats.Handled != 1 || i.Stats.SecondExits != 1 || len(b.s.Probes()) != 1 {
		t.Errorf("counts %+v, %v", i.Stats, err)
	}
	b.clean()
}

// TestJprobeRefused: options that do not fit, each with its code.
func TestJprobeRefused(t *testing.T) {
	b := newBare(t)
	for _, c := range []struct {
		spec session.Spec
		code session.Code
	}{
		{session.Spec{Def: "p schedule", Args: -1}, session.CodeBadValue},
		{session.Spec{Def: "p schedule", Args: session.MaxArgs + 1}, session.CodeBadValue},
		{session.Spec{Def: "p schedule", MirrorStack: 16}, session.CodeBadValue},
		{session.Spec{Def: "p schedule", MirrorEnd: "jprobe_return"}, session.CodeBadValue},
		{session.Spec{Def: "p do_fork", Mirror: "jdo_fork", MirrorStack: probe.MaxJprobeStack + 1}, session.CodeBadValue},
		{session.Spec{Def: "p do_fork", Mirror: "jdo_fork", MirrorStack: -1}, session.CodeBadValue},
		{session.Spec{Def: "r schedule", Args: 1}, session.CodeUnavailable},
		{session.Spec{Def: "w w@jiffies", Args: 1}, session.CodeUnavailable},
		{session.Spec{Def: "p schedule", Args: 1, Post: true}, session.CodeUnavailable},
		{session.Spec{Def: "p do_fork", Mirror: "nope"}, session.Code(probe.CodeSymbolNotFound)},
		{session.Spec{Def: "p do_fork", Mirror: "jdo_fork", MirrorEnd: "nope"}, session.Code(probe.CodeSymbolNotFound)},
		{session.Spec{Def: "p do_fork", Mirror: "jprobe_calls"}, session.Code(probe.CodeNotText)},
	} {
		_, err := b.s.Attach([]session.Spec{{Def: "p:good vfs_read"}, c.spec}, nil)
		if err == nil {
			t.Errorf("%+v is attached", c.spec)
		} else if e := session.ErrorOf(err); e.Code != c.code || e.Index == nil || *e.Index != 1 {
			t.Errorf("%+v: %+v, want %s of the second probe", c.spec, err, c.code)
		}
	}
	for _, def := range []string{"p do_fork+9", "p do_fork+0x10 $arg1"} {
		if a, err := b.s.Attach([]session.Spec{{Def: def, Args: 1}}, nil); err == nil {
			t.Errorf("%s: a jprobe inside a function: %+v", def, a)
		}
	}
	if n := len(b.s.Probes()); n != 0 {
		t.Errorf("%d probes are attached", n)
	}
}

// TestOverrideRefused: functions that cannot return early, and overrides that were
// not allowed.
func TestOverrideRefused(t *testing.T) {
	b := newBare(t)
	over, below := 100.5, int64(-2)
	for _, c := range []struct {
		spec session.Spec
		want string
	}{
		{session.Spec{Def: "p vfs_read", Override: &session.Override{}}, "an override changes what the guest does"},
		{session.Spec{Def: "p vfs_read", Unsafe: true}, "override is missing"},
		{session.Spec{Def: "r vfs_read", Unsafe: true, Override: &session.Override{}}, "only a p definition"},
		{session.Spec{Def: "r vfs_read", AtRets: true, Unsafe: true, Override: &session.Override{}}, "only a p definition"},
		{session.Spec{Def: "w:v w@user_hot_calls", Unsafe: true, Override: &session.Override{}}, "only a p definition"},
		{session.Spec{Def: "p vfs_read+7", Unsafe: true, Override: &session.Override{}}, "only at its entry"},
		{session.Spec{Def: "p vfs_read", Args: 1, Unsafe: true, Override: &session.Override{}}, "a jprobe cannot"},
		{session.Spec{Def: "p vfs_read", Post: true, Unsafe: true, Override: &session.Override{}}, "skips the function"},
		{session.Spec{Def: "p vfs_read", Unsafe: true, Override: &session.Override{Probability: &over}}, "probability is 100.5"},
		{session.Spec{Def: "p vfs_read", Unsafe: true, Override: &session.Override{Times: &below}}, "times is -2"},
	} {
		if _, err := b.s.Attach([]session.Spec{c.spec}, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.spec, err, c.want)
		}
	}
	if len(b.s.Probes()) != 0 {
		t.Errorf("attached %v", b.defs())
	}
}

// TestPartsOfProbed: the description of a probe at a function's entry has the functions that the compiler has made of it.
func TestPartsOfProbed(t *testing.T) {
	b := newBareOf(t, builtinWith(t, "vfs_write", "ab.part.0", "panic", "ab\x00\x00\x00"), nil)
	for def, want := range map[string]string{"p:a ab": "[ab.part.0]", "r:b ab": "[ab.part.0]", "p:c vfs_read": "[]", "p:d ab.part.0": "[]"} {
		if got := fmt.Sprint(b.attach(def)[0].Parts); got != want {
			t.Errorf("%s: %s, want %s", def, got, want)
		}
	}
}

// TestFunctionParts: where a function is missing that the compiler has made others of, the error names these.
func TestFunctionParts(t *testing.T) {
	b := newBareOf(t, builtinWith(t, "vfs_write", "vf.isra.0"), nil)
	if _, err := b.apply("p:a vf"); err == nil || !strings.Contains(err.Error(), "the compiler has made vf.isra.0 of it: probe these") {
		t.Errorf("%v", err)
	}
	if _, err := b.s.CompileScript("kprobe:vf { @++; }", session.ScriptOptions{}); err == nil || !strings.Contains(err.Error(), "the compiler has made vf.isra.0 of it: write kprobe:vf.isra.0") {
		t.Errorf("%v", err)
	}
	b.attach("p:a vf.isra.0")
}

// TestRetsByAddress attaches to the returns of the function at an address, and says which address is in none.
func TestRetsByAddress(t *testing.T) {
	b := newBare(t)
	sym, err := b.img.Lookup("vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	if a, err := b.s.Attach([]session.Spec{{Def: fmt.Sprintf("r:x %#x", uint64(sym.Addr)), AtRets: true}}, nil); err != nil || len(a.Probes) == 0 {
		t.Error(a, err)
	}
	if _, err := b.s.Attach([]session.Spec{{Def: "r:y 0xffffffff70000000", AtRets: true}}, nil); err == nil || strings.Contains(err.Error(), `""`) {
		t.Errorf("%v", err)
	}
}
