package probetest

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// lifeCases follow probes from registration to the restored text.
var lifeCases = []testCase{
	{name: "add_and_remove", run: testAddAndRemove},
	{name: "register_disabled", run: testRegisterDisabled},
	{name: "disarm_all", run: testDisarmAll},
	{name: "site_armed_while_any_enabled", run: testSiteArmed},
	{name: "multiple_kprobes", run: testMultiple},
	{name: "kprobe_insn_boundary", run: testInsnBoundary},
	{name: "profile", run: testProfile},
	{name: "list_format", run: testListFormat},
	{name: "blacklist_format", run: testBlacklistFormat},
	{name: "foreign_int3", needs: []Capability{CanTrap}, run: testForeign},
	{name: "close_restores", run: testClose},
}

func testAddAndRemove(v *env) {
	p := &probe.Kprobe{Name: "myevent", Symbol: "hot", Pre: nop}
	v.register(p)
	list := v.e.List()
	if len(list) != 1 || list[0].Name != "myevent" || list[0].Addr != v.addr("hot") || !list[0].Armed {
		v.Errorf("list: got %+v", list)
	}
	v.checkArmed("registered", v.addr("hot"), true)
	equal(v, "hot", v.call("hot", 41), 42)
	v.unregister(p)
	equal(v, "probes", len(v.e.List()), 0)
	v.checkArmed("unregistered", v.addr("hot"), false)
	equal(v, "hot", v.call("hot", 41), 42)
	equal(v, "hits", v.stats(p).Hits, 1)
}

func testRegisterDisabled(v *env) {
	p := &probe.Kprobe{Symbol: "hot", Pre: nop, Disabled: true}
	v.register(p)
	hot := v.addr("hot")
	step := func(what string, do func(...*probe.Kprobe) error, armed bool, hits uint64) {
		v.Helper()
		if do != nil {
			if err := do(p); err != nil {
				v.Errorf("%s: %v", what, err)
			}
		}
		v.checkArmed(what, hot, armed)
		equal(v, what+": result", v.call("hot", 1), 2)
		equal(v, what+": hits", v.stats(p).Hits, hits)
	}
	step("registered disabled", nil, false, 0)
	step("enabled", v.e.Enable, true, 1)
	step("enabled again", v.e.Enable, true, 2)
	step("disabled", v.e.Disable, false, 2)
	step("disabled again", v.e.Disable, false, 2)
	step("enabled after all", v.e.Enable, true, 3)
	v.unregister(p)
	bad := &probe.Kprobe{Symbol: "kprobe_target", Offset: 1, Disabled: true}
	v.checkRefused("a bad place, disabled", v.e.Register(bad), probe.CodeNotBoundary, syscall.EILSEQ)
}

func testDisarmAll(v *env) {
	on, off := &probe.Kprobe{Symbol: "hot"}, &probe.Kprobe{Symbol: "hot_load", Disabled: true}
	late := &probe.Kprobe{Symbol: "kprobe_target"}
	v.register(on, off)
	for range 2 { // twice: idempotent
		if err := v.e.DisarmAll(); err != nil {
			v.Fatalf("disarm: %v", err)
		}
		equal(v, "armed at all", v.e.Armed(), false)
		v.checkText()
	}
	v.register(late)
	v.checkText()
	if err := v.e.Enable(off); err != nil {
		v.Errorf("enable while disarmed: %v", err)
	}
	v.checkText()
	if err := v.e.Disable(off); err != nil {
		v.Errorf("disable while disarmed: %v", err)
	}
	equal(v, "work", v.call("work", 3), 24)
	equal(v, "hits while disarmed", v.stats(on).Hits, 0)
	for range 2 {
		if err := v.e.ArmAll(); err != nil {
			v.Fatalf("arm: %v", err)
		}
		v.checkArmed("enabled", on.Addr, true)
		v.checkArmed("disabled", off.Addr, false)
		v.checkArmed("registered while disarmed", late.Addr, true)
	}
	equal(v, "work", v.call("work", 3), 24)
	equal(v, "hits", v.stats(on).Hits, 3)
	v.unregister(on, off, late)
}

func testSiteArmed(v *env) {
	a, b := &probe.Kprobe{Symbol: "hot"}, &probe.Kprobe{Symbol: "hot"}
	hot := v.addr("hot")
	v.register(a)
	v.register(b)
	steps := []struct {
		what string
		do   func(...*probe.Kprobe) error
		p    *probe.Kprobe
		want bool
	}{
		{"disable one", v.e.Disable, a, true},
		{"disable both", v.e.Disable, b, false},
		{"enable one", v.e.Enable, a, true},
		{"unregister the enabled one", v.e.Unregister, a, false},
		{"enable the other", v.e.Enable, b, true},
		{"unregister the last", v.e.Unregister, b, false},
	}
	for _, s := range steps {
		if err := s.do(s.p); err != nil {
			v.Errorf("%s: %v", s.what, err)
		}
		v.checkArmed(s.what, hot, s.want)
	}
}

// testMultiple puts a probe on every instruction of many functions at once,
// and several on each.
func testMultiple(v *env) {
	var ps []*probe.Kprobe
	for len(ps) < 256 {
		for _, f := range []string{"hot", "hot_load", "work", "kprobe_target", "kprobe_target2", "e_cond", "e_arith"} {
			for _, off := range v.offsets(f) {
				ps = append(ps, &probe.Kprobe{Name: fmt.Sprintf("%s_%d", f, off), Symbol: f, Offset: off, Pre: nop})
			}
		}
	}
	ps = ps[:256]
	v.register(ps...)
	equal(v, "probes", len(v.e.List()), 256)
	equal(v, "work", v.call("work", 100), 800)
	for _, p := range ps {
		switch s := v.stats(p); {
		case p.Symbol == "hot" || p.Symbol == "hot_load":
			equal(v, p.Name+": hits", s.Hits, 100)
		case p.Symbol != "work":
			equal(v, p.Name+": hits", s.Hits, 0)
		}
	}
	if err := v.e.Disable(ps...); err != nil {
		v.Errorf("disable: %v", err)
	}
	v.checkText()
	if err := v.e.Enable(ps...); err != nil {
		v.Errorf("enable: %v", err)
	}
	equal(v, "work", v.call("work", 10), 80)
	v.unregister(ps...)
}

// testInsnBoundary tries every byte of some functions, keeps the accepted
// probes, and runs the functions.
func testInsnBoundary(v *env) {
	for _, f := range []string{"kprobe_target", "f_emulate", "f_boost", "e_arith", "e_cond", "e_string", "e_stack", "e_riprel"} {
		s, err := v.h.Symbol(f)
		if err != nil {
			v.Fatalf("symbol: %v", err)
		}
		arg := uint64(v.addr("const_seven"))
		want := v.call(f, arg, 3)
		next := v.offsets(f)
		var kept []*probe.Kprobe
		for off := uint64(0); off < s.Size; off++ {
			p := &probe.Kprobe{Symbol: f, Offset: off, Pre: nop}
			err := v.e.Register(p)
			if len(next) == 0 || off != next[0] {
				v.checkRefused(fmt.Sprintf("%s+%#x", f, off), err, probe.CodeNotBoundary, syscall.EILSEQ)
				continue
			}
			next = next[1:]
			if err != nil {
				v.Errorf("%s+%#x: %v", f, off, err)
				continue
			}
			kept = append(kept, p)
		}
		equal(v, f+" with every instruction probed", v.call(f, arg, 3), want)
		v.unregister(kept...)
	}
}

func testProfile(v *env) {
	p := &probe.Kprobe{Symbol: "hot"}
	if _, _, ok := v.e.Stats(p); ok {
		v.Errorf("counts of a probe that never was registered")
	}
	v.register(p)
	equal(v, "hits at first", v.stats(p), probe.Stats{})
	v.call("work", 7)
	equal(v, "counts", v.stats(p), probe.Stats{Hits: 7, Handled: 7})
	equal(v, "breakpoints", v.e.Totals(-1).Breakpoints, 7)
	equal(v, "emulated", v.e.Totals(0).Emulated, 7)
	v.unregister(p)
	p.Addr = 0
	v.register(p)
	equal(v, "counts after registering again", v.stats(p), probe.Stats{})
	v.unregister(p)
}

func testListFormat(v *env) {
	hot := v.addr("hot")
	a := &probe.Kprobe{Symbol: "hot"}
	b := &probe.Kprobe{Symbol: "hot", Disabled: true}
	c := &probe.Kprobe{Symbol: "kprobe_target", Offset: 7}
	v.register(a, b, c)
	got := ""
	for _, i := range v.e.List() {
		got += i.String() + "\n"
	}
	target := fmt.Sprintf("%016x  k  kprobe_target+0x7    \n", uint64(c.Addr))
	want := fmt.Sprintf("%016x  k  hot+0x0    [DISABLED]\n%016x  k  hot+0x0    \n", uint64(hot), uint64(hot))
	if c.Addr < hot {
		want = target + want
	} else {
		want += target
	}
	equal(v, "list", got, want)
	v.unregister(a, b, c)
}

func testBlacklistFormat(v *env) {
	list := v.e.Blacklist()
	var got bytes.Buffer
	if err := probe.WriteBlacklist(&got, list); err != nil {
		v.Errorf("write: %v", err)
	}
	s, err := v.h.Symbol("in_noinstr")
	if err != nil {
		v.Fatalf("symbol: %v", err)
	}
	line := fmt.Sprintf("0x%x-0x%x\tin_noinstr\n", uint64(s.Addr), uint64(s.Addr)+s.Size)
	if !strings.Contains(got.String(), line) {
		v.Errorf("blacklist lacks %q:\n%s", line, got.String())
	}
	for _, name := range []string{"_start", "gp_vectors", "on_blacklist", "on_blacklist.isra.0", "__pfx_target"} {
		found := false
		for _, f := range list {
			found = found || f.Name == name && f.Why != "" && f.Start < f.End
		}
		if !found {
			v.Errorf("blacklist lacks %s", name)
		}
	}
	for _, f := range list {
		if f.Name == "hot" {
			v.Errorf("blacklist has %v", f)
		}
	}
}

// testForeign: an int3 of the guest's own goes to the guest, wherever else the
// engine has its own.
func testForeign(v *env) {
	before := v.load("foreign_count")
	p := &probe.Kprobe{Symbol: "r_int3", Offset: 1, Pre: nop}
	v.register(p)
	equal(v, "r_int3", v.call("r_int3"), 7)
	equal(v, "breakpoints of the guest", v.load("foreign_count"), before+1)
	equal(v, "hits after it", v.stats(p).Hits, 1)
	v.unregister(p)
}

func testClose(v *env) {
	ps := []*probe.Kprobe{{Symbol: "hot"}, {Symbol: "hot_load", Post: func(*probe.Context) {}}, {Symbol: "work", Disabled: true}}
	v.register(ps...)
	v.call("work", 2)
	for range 2 {
		if err := v.e.Close(); err != nil {
			v.Errorf("close: %v", err)
		}
		v.checkText()
	}
	equal(v, "work", v.call("work", 2), 16)
	v.checkRefused("register", v.e.Register(&probe.Kprobe{Symbol: "hot"}), probe.CodeClosed, syscall.ESHUTDOWN)
	v.checkRefused("enable", v.e.Enable(ps[2]), probe.CodeClosed, syscall.ESHUTDOWN)
	v.checkRefused("arm", v.e.ArmAll(), probe.CodeClosed, syscall.ESHUTDOWN)
	equal(v, "hits", v.stats(ps[0]).Hits, 2)
	equal(v, "address", ps[0].Addr, guest.GVA(v.addr("hot")))
}
