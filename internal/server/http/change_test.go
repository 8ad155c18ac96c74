package http

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// TestListsOfCommands: each row is carried out as a whole, or refused with nothing
// changed.
func TestListsOfCommands(t *testing.T) {
	for _, tc := range []struct {
		name     string
		commands []string
		want     []string // definitions; of a refusal those before
		refused  string   // the reason by its kernel's name, and the command's index
	}{
		{"nothing", []string{"# a comment", " \t"}, nil, ""},
		{"one event of several probes", []string{"p:e vfs_read a=%di", "p:e do_fork a=%si", "p:e do_fork a=%di"},
			[]string{"p:kprobes/e vfs_read a=%di", "p:kprobes/e do_fork a=%si", "p:kprobes/e do_fork a=%di"}, ""},
		{"same again", []string{"p:e vfs_read a=%di", "p:e vfs_read b=%di"}, nil, "DIFF_ARG_TYPE 1"},
		{"same name of an argument", []string{"p:e vfs_read %di", "p:e vfs_read arg1=%di"}, nil, "SAME_PROBE 1"},
		{"another kind", []string{"p:e vfs_read", "r:e do_fork"}, nil, "DIFF_PROBE_TYPE 1"},
		{"a watch and another length", []string{"w:e w@vfs_bytes_read:4", "w:e w@vfs_bytes_read:4"}, nil, "SAME_PROBE 1"},
		{"deleted at once", []string{"p:e vfs_read", "-:e"}, nil, ""},
		{"replaced", []string{"p:e vfs_read %di", "-:e", "r:e vfs_read $retval"}, []string{"r:kprobes/e vfs_read arg1=$retval"}, ""},
		{"one of two places", []string{"p:e vfs_read", "p:e do_fork", "-:e vfs_read"}, []string{"p:kprobes/e do_fork"}, ""},
		{"by arguments", []string{"p:e vfs_read %di %si", "-:e vfs_read arg1=%di arg2=%di"}, nil, "NO_EVENT 1"},
		{"a group", []string{"p:g/a vfs_read", "p:g/b do_fork", "p:h/a do_fork", "-:g/"}, []string{"p:h/a do_fork"}, ""},
		{"any group", []string{"p:g/a vfs_read", "p:h/a do_fork", "-:a"}, nil, ""},
		{"by its listing", []string{"p:g/a vfs_read x=%di", "!p:g/a vfs_read x=%di"}, nil, ""},
		{"deleted twice", []string{"p:e vfs_read", "-:e", "-:e"}, nil, "NO_EVENT 2"},
		{"the engine refuses the last", []string{"p:e vfs_read", "-:kept", "p:f vfs_read+1"}, nil, "BAD_INSN_BNDRY 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := serveFake(t, nil)
			h.attach("p:kept schedule")
			want := append([]string{"p:kprobes/kept schedule"}, tc.want...)
			list, err := h.apply(tc.commands...)
			got := ""
			var e *api.Error
			if errors.As(err, &e) {
				got = fmt.Sprintf("%s %d", e.Syntax, *e.Index)
			} else if err != nil {
				t.Fatal(err)
			}
			if got != tc.refused {
				t.Errorf("refused with %q (%v), want %q", got, err, tc.refused)
			}
			if d := cmp.Diff(want, h.defs()); d != "" {
				t.Errorf("definitions (-want +got):\n%s", d)
			}
			if len(list.Probes) != len(tc.want) {
				t.Errorf("the answer has %d probes, want %d", len(list.Probes), len(tc.want))
			}
			if _, err := h.c.DetachAll(h.ctx); err != nil {
				t.Error(err)
			}
			h.identical(true)
		})
	}
}

// TestDeletionTellsFinalCounts: the answer has what a deletion has taken away.
func TestDeletionTellsFinalCounts(t *testing.T) {
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

// TestChoice: names, groups and patterns mean the same wherever they are taken.
func TestChoice(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:io/read vfs_read", "p:io/write vfs_write", "p:io/write do_fork", "p:sched/read schedule", "p do_exit")
	all := []uint64{1, 2, 3, 4, 5}
	for _, tc := range []struct {
		names string
		want  []uint64
		code  api.Code
	}{
		{"", all, ""},
		{"1", []uint64{1}, ""},
		{"write", []uint64{2, 3}, ""},
		{"io/write 3 2", []uint64{2, 3}, ""},
		{"io/", []uint64{1, 2, 3}, ""},
		{"io/*", []uint64{1, 2, 3}, ""},
		{"r*", []uint64{1, 4}, ""},
		{"*/rea[d]", []uint64{1, 4}, ""},
		{"*", all, ""},
		{"p_do_exit_? sched/", []uint64{4, 5}, ""},
		{"read", nil, api.CodeAmbiguousName},
		{"io/ nope", nil, api.CodeProbeNotFound},
		{"nope/", nil, api.CodeProbeNotFound},
		{"io/ x*", nil, api.CodeProbeNotFound},
		{"6", nil, api.CodeProbeNotFound},
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
	h.gone(1)
	// Within one stream the kernel's rules hold.
	if _, err := h.c.Events(h.ctx, api.StreamEvents{Probes: append(same, same...)}); !errors.Is(err, api.ErrNameTaken) {
		t.Errorf("the same twice in a stream: %v", err)
	}
}

// TestPatternsForPlaces: a pattern stands for functions, each of which has a probe or is
// told.
func TestPatternsForPlaces(t *testing.T) {
	for _, tc := range []struct {
		def  string
		want []string // definitions
		skip []string // definitions and reasons
		err  string   // the reason of a refusal
	}{
		{"p vfs_*", []string{"p:kprobes/p_vfs_read_0 vfs_read", "p:kprobes/p_vfs_write_0 vfs_write"}, nil, ""},
		{"r:io/* vfs_* $retval", []string{"r:io/vfs_read vfs_read arg1=$retval", "r:io/vfs_write vfs_write arg1=$retval"}, nil, ""},
		{"p:io/in_* vfs_[r]* fd=%di", []string{"p:io/in_vfs_read vfs_read fd=%di"}, nil, ""},
		{"p:io/e vfs_*%return", []string{"r:io/e vfs_read", "r:io/e vfs_write"}, nil, ""},
		{"r4:io/ vfs_w*", []string{"r4:io/r_vfs_write_0 vfs_write"}, nil, ""},
		{"p:e vfs_*+4 a=%di", []string{"p:kprobes/e vfs_read+4 a=%di", "p:kprobes/e vfs_write+4 a=%di"}, nil, ""},
		{"p:e vfs_*+1", nil, nil, "BAD_INSN_BNDRY"},
		{"p:* blacklisted_*", nil, nil, "FAIL_REG_PROBE"},
		{"p:b/* [bv][lf][as]*", []string{"p:b/vfs_read vfs_read", "p:b/vfs_write vfs_write"}, []string{"p:b/blacklisted_fn blacklisted_fn FAIL_REG_PROBE"}, ""},
		{"p nothing_like_it*", nil, nil, "BAD_PROBE_ADDR"},
		{"p vfs_* %nope", nil, nil, "BAD_REG_NAME"},
		{"p vfs_[", nil, nil, "BAD_PROBE_ADDR"},
		{"w w@vfs_*", nil, nil, "BAD_PROBE_ADDR"},
		{"p:a* vfs_read", nil, nil, "BAD_EVENT_NAME"},
	} {
		t.Run(tc.def, func(t *testing.T) {
			h := serveFake(t, nil)
			list, err := h.apply(tc.def)
			var e *api.Error
			switch {
			case errors.As(err, &e) && e.Syntax != "":
				err = errors.New(e.Syntax)
			case e != nil:
				err = errors.New(string(e.Code))
			}
			if fmt.Sprint(err) != cmpErr(tc.err) {
				t.Errorf("refused with %v (%v), want %q", err, e, tc.err)
			}
			var skipped []string
			for _, s := range list.Skipped {
				skipped = append(skipped, s.Def+" "+s.Error.Syntax)
			}
			if d := cmp.Diff(tc.want, h.defs()); d != "" {
				t.Errorf("definitions (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tc.skip, skipped); d != "" {
				t.Errorf("skipped (-want +got):\n%s", d)
			}
			if tc.skip == nil {
				return
			}
			if _, err := h.c.DetachAll(h.ctx); err != nil {
				t.Fatal(err)
			}
			if list, err := h.c.Apply(h.ctx, api.ProbeSpec{Def: tc.def, Strict: true}); err == nil {
				t.Errorf("strict: attached %+v", list.Probes)
			}
			h.identical(true)
		})
	}
}

func cmpErr(s string) string {
	if s == "" {
		return "<nil>"
	}
	return s
}

// TestPatternOfAStream: a stream takes patterns too, and tells what it has left out.
func TestPatternOfAStream(t *testing.T) {
	h := serveFake(t, nil)
	s := h.stream(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:x [bv][lf][as]*"}}})
	if st := next[api.Start](h, s, api.RecordStart); len(st.Probes) != 2 || len(st.Skipped) != 1 || st.Skipped[0].Error.Code != "blacklisted" {
		t.Errorf("start %+v", st)
	}
}
