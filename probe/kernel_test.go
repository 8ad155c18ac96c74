package probe_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// newPatchingFake is a fake guest that patches itself, of these functions.
func newPatchingFake(t *testing.T, can func(bool) probe.Capabilities) (*probetest.Fake, *probetest.Kernel) {
	t.Helper()
	const nop5 = "0f 1f 44 00 00 "
	img, err := probetest.BuildImage(textBase, false,
		hexFunc(t, "traced", "f3 0f 1e fa "+nop5+"48 8d 47 01 48 89 c0 c3 cc cc cc"), // endbr64; nopl; lea 1(%rdi),%rax; mov %rax,%rax; ret
		hexFunc(t, "plain", nop5+"48 8d 47 02 48 89 c0 c3"),
		hexFunc(t, "loop", nop5+"31 c0 ff cf 75 fa c3"),               // nopl; l: xor %eax,%eax; dec %edi; jne l; ret
		hexFunc(t, "label", "31 c0 "+nop5+"48 8d 47 03 48 89 c0 c3"),  // a jump label, off
		hexFunc(t, "there", "89 f8 ff c0 89 c0 83 c0 01 90 90 90 c3"), // mov; inc; mov; add: where the label leads
		hexFunc(t, "ends", "8d 47 05 c3 cc cc cc cc cc"),              // lea 5(%rdi),%eax; ret; int3s that are its thunk's room
		hexFunc(t, "fault", "48 8b 07 48 89 c0 c3"),                   // mov (%rdi),%rax; mov %rax,%rax; ret
		hexFunc(t, "push", "57 58 90 90 90 c3"),                       // push %rdi; pop %rax
	)
	if err != nil {
		t.Fatal(err)
	}
	k := &probetest.Kernel{Image: img}
	at := func(name string, off int) guest.GVA {
		s, err := img.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		return s.Addr + guest.GVA(off)
	}
	for _, r := range []struct {
		name    string
		from, n int
		why     string
	}{{"traced", 4, 5, probetest.Ftrace}, {"plain", 0, 5, probetest.Ftrace}, {"loop", 0, 5, probetest.Ftrace}, {"label", 2, 5, "jump_label"}, {"ends", 3, 5, "return"}} {
		k.Rewritten = append(k.Rewritten, probetest.Rewritten{Range: guest.Range{Start: at(r.name, r.from), End: at(r.name, r.from+r.n)}, Why: r.why})
	}
	k.Leads = []guest.GVA{at("there", 4)}
	k.Faulting = []guest.GVA{at("fault", 0), at("push", 0)}
	f, err := probetest.NewFake(probetest.FakeOptions{Image: img, Can: can, Symbols: func(*guest.Image) probe.Symbols { return k }, Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return f, k
}

// TestEntryAfterTracer: a probe on the entry of a function is placed after the call
// of its tracer, by int3 and by jump, and is reported at the call.
func TestEntryAfterTracer(t *testing.T) {
	f, k := newPatchingFake(t, nil)
	e := f.Engine()
	for _, tc := range []struct {
		name         string
		shown, after guest.GVA
		result       uint64
	}{{"traced", 4, 9, 11}, {"plain", 0, 5, 12}} {
		start := symbol(t, f, tc.name)
		shown, after := start+tc.shown, start+tc.after
		var got []string
		see := func(name string) func(*probe.Context) int {
			return func(c *probe.Context) int {
				pcs := make([]guest.GVA, 2)
				n := c.Stack(pcs)
				got = append(got, fmt.Sprintf("%s %v %v %v", name, c.Addr-start, guest.GVA(c.Regs.RIP)-start, pcs[:min(n, 1)][0]-start))
				return 0
			}
		}
		var returned []uint64
		bySymbol := &probe.Kprobe{Name: "symbol", Symbol: tc.name, Pre: see("symbol")}
		byAddr := &probe.Kprobe{Name: "addr", Addr: shown, Pre: see("addr")}
		ret := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: "ret", Addr: shown}, Entry: see("entry"), Return: func(c *probe.Context) {
			returned = append(returned, c.Regs.RAX, uint64(c.Addr-start))
		}}
		exact := &probe.Kprobe{Name: "behind", Symbol: tc.name, Offset: uint64(tc.after), Pre: see("behind")}
		if addr, _, entry, err := e.Resolve(bySymbol); err != nil || addr != shown || !entry {
			t.Errorf("%s: resolved to %v, entry %v, %v, want %v", tc.name, addr, entry, err, shown)
		}
		if err := e.Register(bySymbol, byAddr, ret, exact); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 16)
		if err := f.Read(start, b); err != nil || b[tc.shown] != 0x0f || b[tc.after] != 0xcc {
			t.Errorf("%s: text % x, %v", tc.name, b, err)
		}
		for _, p := range []*probe.Kprobe{bySymbol, byAddr, &ret.Kprobe, exact} {
			want := shown
			if p == exact {
				want = after
			}
			i, _ := e.Info(p)
			if p.Addr != want || i.Addr != want || i.Offset != uint64(want-start) || i.Symbol != tc.name || i.Entry != (p != exact) {
				t.Errorf("%s: address %v, listed %+v, want %v", p.Name, p.Addr, i, want)
			}
		}
		want := []string{
			fmt.Sprintf("behind %v %v %v", tc.after, tc.after+1, tc.after), fmt.Sprintf("entry %v %v %v", tc.shown, tc.shown+1, tc.shown),
			fmt.Sprintf("addr %v %v %v", tc.shown, tc.shown+1, tc.shown), fmt.Sprintf("symbol %v %v %v", tc.shown, tc.shown+1, tc.shown),
		}
		for _, jump := range []bool{false, true} {
			got, returned = nil, nil
			if jump {
				if err := e.Optimize(); err != nil {
					t.Fatal(err)
				}
			}
			if i, _ := e.Info(bySymbol); i.Optimized != jump {
				t.Errorf("optimized %v, want %v: %+v", i.Optimized, jump, i.Unoptimized)
			}
			if r, err := f.Call(0, start, 10); err != nil || r != tc.result {
				t.Errorf("%s gives %d, %v", tc.name, r, err)
			}
			if !slices.Equal(got, want) || !slices.Equal(returned, []uint64{tc.result, uint64(tc.shown)}) {
				t.Errorf("%s, jump %v: hits %q, want %q; returned %d", tc.name, jump, got, want, returned)
			}
		}
		if err := e.Unregister(bySymbol, byAddr, &ret.Kprobe, exact); err != nil {
			t.Error(err)
		}
		for _, off := range []uint64{1, 2, 3, 4} {
			wantCode(t, e.Register(&probe.Kprobe{Symbol: tc.name, Offset: uint64(tc.shown) + off}), probe.CodeNotBoundary, syscall.EILSEQ, nil)
		}
		// A place that does not call a tracer is fixed for another reason.
		whole := k.Rewritten
		k.Rewritten = []probetest.Rewritten{{Range: guest.Range{Start: shown, End: shown + 5}, Why: "static_call"}}
		wantCode(t, e.Register(&probe.Kprobe{Symbol: tc.name}), probe.CodePatched, syscall.EINVAL, nil)
		k.Rewritten = whole
	}
	err := e.Register(&probe.Kprobe{Symbol: "loop"})
	wantCode(t, err, probe.CodePatched, syscall.EINVAL, nil)
	if err != nil && !strings.Contains(err.Error(), "a branch leads to") {
		t.Error(err)
	}
}

// TestEntryStage: a stage at such an entry sees the address that hits are reported at.
func TestEntryStage(t *testing.T) {
	f, _ := newPatchingFake(t, nil)
	e := f.Engine()
	start := symbol(t, f, "traced")
	ip := func() (*probe.Stage, []byte) {
		block, host, err := f.AllocShared(64, false)
		if err != nil {
			t.Fatal(err)
		}
		// mov 0x80(%rdi),%rax; mov %rax,(%rsi); ret
		return &probe.Stage{Code: []byte("\x48\x8b\x87\x80\x00\x00\x00\x48\x89\x06\xc3"), Block: block, Reads: 1 << 16, NoStrings: true, Stack: 8}, host
	}
	entry, exact := &probe.Kprobe{Symbol: "traced"}, &probe.Kprobe{Symbol: "traced", Offset: 9}
	var atEntry, atExact []byte
	entry.Stage, atEntry = ip()
	exact.Stage, atExact = ip()
	for _, tc := range []struct {
		ps           []*probe.Kprobe
		entry, exact guest.GVA // what the stages see, 0: they do not run
	}{{[]*probe.Kprobe{entry}, 5, 0}, {[]*probe.Kprobe{exact}, 0, 10}, {[]*probe.Kprobe{entry, exact}, 0, 0}} {
		clear(atEntry[:8])
		clear(atExact[:8])
		for _, p := range tc.ps {
			p.Addr = 0
		}
		if err := e.Register(probe.Probes(tc.ps)...); err != nil {
			t.Fatal(err)
		}
		if err := e.Optimize(); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Call(0, start, 1); err != nil {
			t.Fatal(err)
		}
		for _, x := range []struct {
			host []byte
			want guest.GVA
		}{{atEntry, tc.entry}, {atExact, tc.exact}} {
			if x.want != 0 {
				x.want += start
			}
			if got := guest.GVA(binary.LittleEndian.Uint64(x.host)); got != x.want {
				t.Errorf("%d probes: a stage has seen %v, want %v", len(tc.ps), got, x.want)
			}
		}
		for _, p := range tc.ps {
			if i, _ := e.Info(p); !i.Optimized || i.InGuest != (len(tc.ps) == 1) {
				t.Errorf("%d probes: %+v", len(tc.ps), i)
			}
		}
		if err := e.Unregister(tc.ps...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRewrittenText: what the guest rewrites has no int3 and is in no jump's region;
// nor is what its branches may come to lead to.
func TestRewrittenText(t *testing.T) {
	f, _ := newPatchingFake(t, nil)
	e := f.Engine()
	err := e.Register(&probe.Kprobe{Symbol: "label", Offset: 2})
	wantCode(t, err, probe.CodePatched, syscall.EINVAL, nil)
	if want := "the guest itself rewrites the instruction at label+0x2 (jump_label): EINVAL [patched_site]"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	for _, tc := range []struct {
		symbol string
		offset uint64
		reason string
		detail string
	}{
		{"label", 0, "patched_site", "jump_label"},
		{"label", 7, "", ""},
		{"there", 0, "jump_into_region", "to +0x4, from elsewhere"},
		{"there", 4, "", ""},
		{"ends", 0, "patched_site", "return"},
		{"fault", 0, "exception_entry", ""},
	} {
		p := &probe.Kprobe{Symbol: tc.symbol, Offset: tc.offset}
		if err := e.Register(p); err != nil {
			t.Errorf("%s+%#x: %v", tc.symbol, tc.offset, err)
			continue
		}
		if err := e.Optimize(); err != nil {
			t.Fatal(err)
		}
		i, _ := e.Info(p)
		if i.Unoptimized.Reason != tc.reason || !strings.Contains(i.Unoptimized.Detail, tc.detail) {
			t.Errorf("%s+%#x: %+v, want %s, %s", tc.symbol, tc.offset, i.Unoptimized, tc.reason, tc.detail)
		}
		if err := e.Unregister(p); err != nil {
			t.Error(err)
		}
	}
}

// TestExceptionEntryStays: an instruction whose faults the guest looks up by their
// address runs in its place, or is emulated there.
func TestExceptionEntryStays(t *testing.T) {
	inPlace := true
	f, _ := newPatchingFake(t, func(bool) probe.Capabilities { return probe.Capabilities{InPlace: inPlace} })
	e := f.Engine()
	if err := f.Write(0x7000_1000, []byte{42}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		symbol, plan string
		result       uint64
	}{{"fault", "in_place", 42}, {"push", "emulate", 0x7000_1000}} {
		posts := 0
		p := &probe.Kprobe{Symbol: tc.symbol, Post: func(*probe.Context) { posts++ }}
		if err := e.Register(p); err != nil {
			t.Fatal(err)
		}
		if i, _ := e.Info(p); i.Plan != tc.plan {
			t.Errorf("%s: plan %s, want %s", tc.symbol, i.Plan, tc.plan)
		}
		if r, err := f.Call(0, p.Addr, 0x7000_1000); err != nil || r != tc.result || posts != 1 {
			t.Errorf("%s gives %d, %v; %d post handlers", tc.symbol, r, err, posts)
		}
		if err := e.Unregister(p); err != nil {
			t.Error(err)
		}
	}
	inPlace = false
	if err := f.Reset(probetestImage(f)); err != nil {
		t.Fatal(err)
	}
	err := e.Register(&probe.Kprobe{Symbol: "fault"})
	wantCode(t, err, probe.CodeHostCannot, syscall.ENODEV, nil)
	if err != nil && !strings.Contains(err.Error(), "exception_entry") {
		t.Error(err)
	}
	if err := e.Register(&probe.Kprobe{Symbol: "push"}); err != nil {
		t.Error(err)
	}
}

// probetestImage returns the image that the guest of patching has.
func probetestImage(f *probetest.Fake) *guest.Image { return f.Symbols().(*probetest.Kernel).Image }

// TestPhases: a guest without executable memory for the engine supports probes that
// need none; once it has some, and the kernel's tables say that text is free, all
// probes get their best form, and counts continue.
func TestPhases(t *testing.T) {
	early := true
	f, k := newPatchingFake(t, func(bool) probe.Capabilities {
		can := probe.Capabilities{InPlace: true}
		if early {
			can.NoExec = "the kernel has not set up its memory"
		}
		return can
	})
	e := f.Engine()
	if err := f.Write(0x7000_1000, []byte{42}); err != nil {
		t.Fatal(err)
	}
	// lea, emulated; a load, which wants a slot; the same with a post handler.
	emulated, loaded := &probe.Kprobe{Symbol: "traced", Pre: emptyHandler}, &probe.Kprobe{Symbol: "fault", Pre: emptyHandler}
	k.Faulting = nil
	posts := 0
	post := &probe.Kprobe{Symbol: "fault", Post: func(*probe.Context) { posts++ }}
	if err := e.Register(emulated, loaded, post); err != nil {
		t.Fatal(err)
	}
	call := func(what string, name string, arg, want uint64) {
		t.Helper()
		if got, err := f.Call(0, symbol(t, f, name), arg); err != nil || got != want {
			t.Errorf("%s: %s gives %d, %v, want %d", what, name, got, err, want)
		}
	}
	check := func(what string, jumps bool, hits uint64, inPlace uint64) {
		t.Helper()
		before := e.Totals(-1)
		call(what, "traced", 10, 11)
		call(what, "fault", 0x7000_1000, 42)
		if now := e.Totals(-1); now.InPlace-before.InPlace != inPlace || now.Boosted+now.Stepped-before.Boosted-before.Stepped != 1-inPlace {
			t.Errorf("%s: %+v, before %+v", what, now, before)
		}
		for _, p := range []*probe.Kprobe{emulated, loaded, post} {
			i, _ := e.Info(p)
			if i.Stats.Hits != hits || p == emulated && i.Optimized != jumps {
				t.Errorf("%s: %+v", what, i)
			}
		}
		if posts != int(hits) {
			t.Errorf("%s: %d post handlers, want %d", what, posts, hits)
		}
	}
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	check("early", false, 1, 1)
	if i, _ := e.Info(emulated); i.Unoptimized.Reason != "no_detour_memory" || !strings.Contains(i.Unoptimized.Detail, "set up") {
		t.Errorf("early: %+v", i.Unoptimized)
	}
	wantCode(t, e.Register(&probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "plain"}}), probe.CodeHostCannot, syscall.ENODEV, nil)
	wantCode(t, e.Register(&probe.Kprobe{Symbol: "label", Offset: 2}), probe.CodePatched, syscall.EINVAL, nil)
	if used := e.CollectorStats().Used; used != 0 {
		t.Errorf("%d bytes of executable memory", used)
	}

	early, k.Rewritten = false, k.Rewritten[:3] // the label is free
	if err := e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	check("late", true, 2, 0)
	label := &probe.Kprobe{Symbol: "label", Pre: emptyHandler}
	ret := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "plain"}}
	if err := e.Register(label, ret, &probe.Kprobe{Symbol: "label", Offset: 7}); err != nil {
		t.Fatal(err)
	}
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	if i, _ := e.Info(label); !i.Optimized {
		t.Errorf("late: %+v", i.Unoptimized)
	}
	call("late", "plain", 10, 12)
}

// isolated is a fake guest whose vCPU 1 is stopped with tables of CPL3 that do not
// map the kernel, and whose vCPU 0 has tables that lack the addresses in lost.
type isolated struct {
	*probetest.Fake
	lost func(guest.GVA) bool
}

func (f *isolated) Translate(root guest.GPA, addr guest.GVA) (guest.GPA, bool) {
	if root == 0x2000 || root == 0x1000 && f.lost(addr) {
		return 0, false
	}
	return f.Fake.Translate(root, addr)
}

func (f *isolated) Stop(do func(probe.World) error) error {
	return f.Fake.Stop(func(w probe.World) error { return do(isolatedWorld{w}) })
}

type isolatedWorld struct{ probe.World }

func (w isolatedWorld) CPU(i int) probe.State {
	s := w.World.CPU(i)
	s.Root = guest.GPA(0x1000 * (i + 1))
	return s
}

// TestPageTableIsolation: a jump of the kernel's is written although a vCPU is in tables
// that lack the kernel; not so when one's have the text and lack the detour.
func TestPageTableIsolation(t *testing.T) {
	f := &isolated{newFake(t, 2, probetest.Image()), func(guest.GVA) bool { return false }}
	e, err := probe.New(f, probe.Options{OptimizeDelay: -1})
	if err != nil {
		t.Fatal(err)
	}
	p := &probe.Kprobe{Symbol: "hot_load", Pre: emptyHandler}
	for _, reason := range []string{"", "not_mapped"} {
		if reason != "" {
			text := symbol(t, f.Fake, "hot_load")
			f.lost = func(a guest.GVA) bool { return a < text || a > text+100 }
		}
		p.Addr = 0
		if err := e.Register(p); err != nil {
			t.Fatal(err)
		}
		if err := e.Optimize(); err != nil {
			t.Fatal(err)
		}
		if i, _ := e.Info(p); i.Unoptimized.Reason != reason || i.Optimized != (reason == "") {
			t.Errorf("optimized %v, %+v, want reason %q", i.Optimized, i.Unoptimized, reason)
		}
		if err := e.Unregister(p); err != nil {
			t.Fatal(err)
		}
	}
}
