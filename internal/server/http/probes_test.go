package http

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestProbeRoutes is about the routes of probes: fields of answers, names in paths, the list in the kernel's format, and codes. TestProbeLife of
// probe/session has the life of probes.
func TestProbeRoutes(t *testing.T) {
	h := serveFake(t, nil)
	ps := h.attach("p:first do_fork flags=%di", "p user_hot")
	if len(ps) != 2 {
		t.Fatalf("%d probes, want 2", len(ps))
	}
	p := ps[0]
	want := api.Probe{
		ID: 1, Name: "kprobes/first", Def: "p:kprobes/first do_fork flags=%di", Kind: "k", Symbol: "do_fork",
		Enabled: true, Armed: true, Stay: true, Runs: "host", OnHost: "this guest has no memory that host and guest share",
		Unoptimized: &api.Unoptimized{Reason: "waiting", Meaning: "the next pass will look at it"},
	}
	if d := cmp.Diff(want, p, cmpopts.IgnoreFields(api.Probe{}, "Addr", "Size", "Plan", "Insn", "Stats", "Offset")); d != "" {
		t.Errorf("attached (-want +got):\n%s", d)
	}
	if ps[1].Name != "kprobes/p_user_hot_0" || !ps[1].User || ps[1].ID != 2 {
		t.Errorf("second: %+v", ps[1])
	}
	h.checkIdentical(false)

	for i := range 5 {
		if !h.g.hit(t, i%2, "do_fork", p.Offset, nil) {
			t.Fatal("not hit")
		}
	}
	for _, name := range []string{"first", "kprobes/first", "1"} {
		got, err := h.c.Probe(h.ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		s := got.Stats
		if s.Hits != 5 || s.Handled != 5 || s.Missed != 0 || len(s.CPUs) != 2 || s.CPUs[0].Hits != 3 || s.CPUs[1].Hits != 2 {
			t.Errorf("%s: stats %+v", name, s)
		}
	}

	if got, err := h.c.SetEnabled(h.ctx, "first", false); err != nil || got.Enabled || got.Armed {
		t.Errorf("disabled: %+v, %v", got, err)
	}
	if h.g.hit(t, 0, "do_fork", p.Offset, nil) {
		t.Error("a disabled probe was hit")
	}
	list, err := h.c.KernelList(h.ctx, "list")
	if err != nil {
		t.Fatal(err)
	}
	wantLine := fmt.Sprintf("%016x  k  do_fork+0x%x    [DISABLED]\n", uint64(p.Addr), p.Offset)
	if !strings.Contains(list, wantLine) {
		t.Errorf("list is\n%swant a line\n%s", list, wantLine)
	}
	if got, err := h.c.SetEnabled(h.ctx, "first", true); err != nil || !got.Enabled || !got.Armed {
		t.Errorf("enabled: %+v, %v", got, err)
	}

	got, err := h.c.Detach(h.ctx, "first")
	if err != nil || got.Armed || got.Stats.Hits != 5 {
		t.Errorf("detached: %+v, %v", got, err)
	}
	if _, err := h.c.Detach(h.ctx, "first"); !errors.Is(err, api.ErrProbeNotFound) {
		t.Errorf("detached twice: %v", err)
	}
	rest, err := h.c.DetachAll(h.ctx)
	if err != nil || len(rest) != 1 || rest[0].ID != 2 {
		t.Errorf("detached all: %+v, %v", rest, err)
	}
	h.checkIdentical(true)
	if again := h.attach("p:first do_fork"); again[0].ID != 3 {
		t.Errorf("a number was used again: %d", again[0].ID)
	}
}

// TestBatchAnswer is about the refusal of a list of definitions: its code, and the index of the definition.
func TestBatchAnswer(t *testing.T) {
	h := serveFake(t, nil)
	_, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:a do_fork"}, api.ProbeSpec{Def: "p:b vfs_read"}, api.ProbeSpec{Def: "p:c blacklisted_fn"})
	var e *api.Error
	if !errors.As(err, &e) || e.Code != "blacklisted" || *e.Index != 2 {
		t.Fatalf("error %v", err)
	}
	if ps, err := h.c.Probes(h.ctx); err != nil || len(ps) != 0 {
		t.Errorf("probes %v, %v", ps, err)
	}
	h.checkIdentical(true)
	// The names and numbers of a refused batch are free.
	if ps := h.attach("p:a do_fork"); ps[0].ID != 1 {
		t.Errorf("number %d", ps[0].ID)
	}
}

// TestAmbiguousAnswer is about paths: an ambiguous name has a code and a detail, and a group may be part of a path.
func TestAmbiguousAnswer(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:one/same do_fork", "p:two/same vfs_read")
	_, err := h.c.Probe(h.ctx, "same")
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeAmbiguousName || !strings.Contains(e.Detail, "one/same, two/same") {
		t.Errorf("ambiguous: %v", err)
	}
	if p, err := h.c.Probe(h.ctx, "two/same"); err != nil || p.Symbol != "vfs_read" {
		t.Errorf("two/same: %+v, %v", p, err)
	}
}

// TestArmedRoute is about the route that arms and disarms all probes, and what other routes say then.
func TestArmedRoute(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:a do_fork", "p:b vfs_read")
	if err := h.c.SetArmed(h.ctx, false); err != nil {
		t.Fatal(err)
	}
	h.checkIdentical(true)
	if on, err := h.c.Armed(h.ctx); err != nil || on {
		t.Errorf("armed %v, %v", on, err)
	}
	if g, err := h.c.Guest(h.ctx); err != nil || g.Enabled || g.Probes != 2 {
		t.Errorf("guest %+v, %v", g, err)
	}
	h.attach("p:c schedule") // while disarmed
	h.checkIdentical(true)
	if err := h.c.SetArmed(h.ctx, true); err != nil {
		t.Fatal(err)
	}
	if txt, err := h.c.Text(h.ctx); err != nil || len(txt.Ranges) != 3 {
		t.Errorf("ranges %+v, %v", txt.Ranges, err)
	}
}

func TestTextRanges(t *testing.T) {
	h := serveFake(t, nil)
	ps := h.attach("p:a do_fork")
	txt, err := h.c.Text(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := []api.TextRange{{Addr: ps[0].Addr, Symbol: fmt.Sprintf("do_fork+0x%x", ps[0].Offset), Live: "cc", Image: ps[0].Insn[:2], By: api.TextProbe}}
	if d := cmp.Diff(want, txt.Ranges); d != "" || txt.Live == txt.Image || txt.Bytes == 0 {
		t.Errorf("text %+v (-want +got):\n%s", txt, d)
	}
}

func TestSymbolsAndBlacklist(t *testing.T) {
	h := serveFake(t, nil)
	l, err := h.c.Symbols(h.ctx, remote.SymbolQuery{Match: "vfs_*", Kind: "func"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range l.Symbols {
		names = append(names, s.Name)
	}
	if d := cmp.Diff([]string{"vfs_read", "vfs_write"}, names); d != "" || l.More {
		t.Errorf("symbols %+v (-want +got):\n%s", l, d)
	}
	if l, err = h.c.Symbols(h.ctx, remote.SymbolQuery{Limit: 1}); err != nil || len(l.Symbols) != 1 || !l.More {
		t.Errorf("limit: %d symbols, more %v, %v", len(l.Symbols), l.More, err)
	}
	if l, err = h.c.Symbols(h.ctx, remote.SymbolQuery{Match: "blacklisted_fn"}); err != nil || l.Symbols[0].Blacklist == "" {
		t.Errorf("blacklisted symbol: %+v, %v", l, err)
	}
	entries, err := h.c.Blacklist(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	text, err := h.c.KernelList(h.ctx, "blacklist")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, e := range entries {
		found = found || e.Symbol == "blacklisted_fn" && e.Reason != ""
		if line := fmt.Sprintf("%v-%v\t%s\n", e.Start, e.End, e.Symbol); !strings.Contains(text, line) {
			t.Errorf("the kernel's format lacks %q", line)
		}
	}
	if !found || strings.Count(text, "\n") != len(entries) {
		t.Errorf("%d entries, found %v, text:\n%s", len(entries), found, text)
	}
}

// TestResetAnswer is about the answer to a reset: the state of the guest, its boots and its probes.
func TestResetAnswer(t *testing.T) {
	h := serveFake(t, nil)
	ps := h.attach("p:a do_fork")
	g, err := h.c.Reset(h.ctx, api.ResetGuest{Paused: true})
	if err != nil || g.State != "created" || g.Boots != 2 || g.Probes != 1 {
		t.Fatalf("reset: %+v, %v", g, err)
	}
	h.checkIdentical(false)
	if !h.g.hit(t, 0, "do_fork", ps[0].Offset, nil) {
		t.Error("not hit after the reset")
	}
	if g, err = h.c.Reset(h.ctx, api.ResetGuest{}); err != nil || g.State != "running" || g.Boots != 3 {
		t.Errorf("reset: %+v, %v", g, err)
	}
}

// TestProbesOfAStoppingDaemon: between the detaching of all probes and the end
// of the last request, a client must not be told that its probe never was.
func TestProbesOfAStoppingDaemon(t *testing.T) {
	h := serveFake(t, nil)
	name := h.attach("p:mine vfs_read")[0].Name
	if err := h.s.probes.Close(); err != nil {
		t.Fatal(err)
	}
	_, get := h.c.Probe(h.ctx, name)
	_, set := h.c.SetEnabled(h.ctx, name, false)
	_, detach := h.c.Detach(h.ctx, name)
	_, attach := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:other vfs_read"})
	_, stream := h.c.Events(h.ctx, api.StreamEvents{Names: []string{name}})
	for what, err := range map[string]error{"get": get, "disable": set, "detach": detach, "attach": attach, "stream": stream} {
		if !errors.Is(err, api.ErrClosing) {
			t.Errorf("%s while the daemon stops: %v, want %v", what, err, api.ErrClosing)
		}
	}
}
