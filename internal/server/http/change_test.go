package http

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// defs returns the definitions that are attached, by number.
func (h *harness) defs() (out []string) {
	h.Helper()
	ps, err := h.c.Probes(h.ctx)
	if err != nil {
		h.Fatal(err)
	}
	for _, p := range ps {
		out = append(out, p.Def)
	}
	return out
}

// apply carries out commands.
func (h *harness) apply(commands ...string) (api.ProbeList, error) {
	var specs []api.ProbeSpec
	for _, c := range commands {
		specs = append(specs, api.ProbeSpec{Def: c})
	}
	return h.c.Apply(h.ctx, specs...)
}

// TestApplyAnswer is about the answer to commands: it has the probes that came, and those that went with their last counts.
func TestApplyAnswer(t *testing.T) {
	h := serveFake(t, nil)
	p := h.attach("p:old schedule")[0]
	h.g.hit(t, 0, "schedule", p.Offset, nil)
	list, err := h.apply("-:old", "p:old schedule", "p:new do_fork")
	if err != nil || len(list.Detached) != 1 || list.Detached[0].ID != p.ID || list.Detached[0].Stats.Hits != 1 || len(list.Probes) != 2 || list.Probes[0].ID != p.ID+1 {
		t.Errorf("%+v, %v", list, err)
	}
	if got, err := h.c.Probe(h.ctx, "old"); err != nil || got.ID != p.ID+1 {
		t.Errorf("old: %+v, %v", got, err)
	}
}

// TestNamesInRequests is about queries and answers: names, groups and patterns of a request are those of the session, whose TestChoice has all forms.
func TestNamesInRequests(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:io/read vfs_read", "p:io/write vfs_write", "p:io/write do_fork", "p:sched/read schedule", "p do_exit")
	all := []uint64{1, 2, 3, 4, 5}
	for _, tc := range []struct {
		names string
		want  []uint64
		code  api.Code
	}{
		{"", all, ""},
		{"io/write 3 2", []uint64{2, 3}, ""},
		{"*/rea[d] p_do_exit_?", []uint64{1, 4, 5}, ""},
		{"read", nil, api.CodeAmbiguousName},
		{"io/ nope", nil, api.CodeProbeNotFound},
		{"[", nil, api.CodeBadValue},
	} {
		names := strings.Fields(tc.names)
		ids := func(ps []api.Probe, err error) (out []uint64, code api.Code) {
			var e *api.Error
			if errors.As(err, &e) {
				return nil, e.Code
			} else if err != nil {
				t.Fatal(err)
			}
			for _, p := range ps {
				out = append(out, p.ID)
			}
			return out, ""
		}
		off := false
		listed, code := ids(h.c.Probes(h.ctx, names...))
		if !slices.Equal(listed, tc.want) || code != tc.code {
			t.Errorf("%q: listed %v %q, want %v %q", tc.names, listed, code, tc.want, tc.code)
		}
		disabled, code := ids(h.c.Patch(h.ctx, api.PatchProbe{Enabled: &off}, names...))
		if !slices.Equal(disabled, tc.want) || code != tc.code {
			t.Errorf("%q: disabled %v %q, want %v %q", tc.names, disabled, code, tc.want, tc.code)
		}
		on := true
		ps, err := h.c.Probes(h.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ps {
			if p.Enabled == slices.Contains(tc.want, p.ID) {
				t.Errorf("%q: probe %d is enabled: %v", tc.names, p.ID, p.Enabled)
			}
		}
		if _, err := h.c.Patch(h.ctx, api.PatchProbe{Enabled: &on}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.c.Detach(h.ctx, "write"); err == nil {
		t.Error("two probes were detached as one")
	}
	gone, err := h.c.DetachMany(h.ctx, "io/w*", "5")
	if err != nil || len(gone) != 3 || len(h.defs()) != 2 {
		t.Errorf("detached %+v, %v; left are %v", gone, err, h.defs())
	}
}

// TestStreamsOfTheSameDefinition: what a stream brings is its own, whatever it is
// called, and whoever stays is meant where a name is that of both.
func TestStreamsOfTheSameDefinition(t *testing.T) {
	h := serveFake(t, nil)
	same := []api.ProbeSpec{{Def: "p schedule x=%di"}}
	one := h.stream(h.ctx, api.StreamEvents{Probes: same})
	a := next[api.Start](h, one, api.RecordStart).Probes[0]
	two := h.stream(h.ctx, api.StreamEvents{Probes: same})
	b := next[api.Start](h, two, api.RecordStart).Probes[0]
	if a.Name != b.Name || a.ID == b.ID {
		t.Fatalf("%s %d and %s %d", a.Name, a.ID, b.Name, b.ID)
	}
	if !h.g.hit(t, 0, "schedule", a.Offset, nil) {
		t.Fatal("not hit")
	}
	if x, y := next[api.Hit](h, one, api.RecordHit), next[api.Hit](h, two, api.RecordHit); x.ID != a.ID || y.ID != b.ID {
		t.Errorf("hits of %d and %d, want %d and %d", x.ID, y.ID, a.ID, b.ID)
	}
	if ps, err := h.c.Probes(h.ctx, a.Name); err != nil || len(ps) != 2 {
		t.Errorf("%s: %+v, %v", a.Name, ps, err)
	}
	stays := h.attach(same[0].Def)[0]
	if p, err := h.c.Probe(h.ctx, a.Name); err != nil || p.ID != stays.ID {
		t.Errorf("%s: %+v, %v; want number %d", a.Name, p, err, stays.ID)
	}
	if _, err := h.apply("-:" + stays.Name[strings.IndexByte(stays.Name, '/')+1:]); err != nil {
		t.Error(err)
	}
	one.Close()
	h.awaitGone(1)
	// Within one stream the kernel's rules hold.
	if _, err := h.c.Events(h.ctx, api.StreamEvents{Probes: append(same, same...)}); !errors.Is(err, api.ErrNameTaken) {
		t.Errorf("the same twice in a stream: %v", err)
	}
}

// TestPatternOfAStream: a stream takes patterns too, and tells what it has left out.
func TestPatternOfAStream(t *testing.T) {
	h := serveFake(t, nil)
	s := h.stream(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:x [bv][lf][as]*"}}})
	if st := next[api.Start](h, s, api.RecordStart); len(st.Probes) != 2 || len(st.Skipped) != 1 || st.Skipped[0].Error.Code != "blacklisted" {
		t.Errorf("start %+v", st)
	}
}

// TestErrorsOfAttach: what attaches for others than clients gets the errors that clients get; a fleet's definitions wait for names.
func TestErrorsOfAttach(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:a vfs_read")
	for def, want := range map[string]error{"r:a vfs_read": api.ErrNameTaken, "-:b": api.ErrProbeNotFound} {
		var wire *api.Error
		if _, _, err := h.s.attach([]api.ProbeSpec{{Def: def}}, nil); !errors.As(err, &wire) || !errors.Is(err, want) || wire.Index == nil {
			t.Errorf("%s: %v", def, err)
		}
	}
}
