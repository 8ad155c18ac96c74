package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// TestLeaveOut: a flag that only some of a command's definitions support is left out of the others, with a note. A flag that none
// supports is rejected by the daemon.
func TestLeaveOut(t *testing.T) {
	const p, r, w = "p vfs_read", "r20:back vfs_read", "w:total rw@user_hot_calls"
	given := func(s api.ProbeSpec) (names string) {
		for _, o := range session.KindOptions {
			if kindFlags[o.Name].given == nil {
				t.Fatalf("no flag is known for %s", o.Name)
			}
			if kindFlags[o.Name].given(&s) {
				names += " " + o.Name
			}
		}
		return strings.TrimSpace(names)
	}
	all := func() *probeFlags {
		return &probeFlags{space: "0x1000", emulate: true, atRets: true, post: true, args: 2, mirror: "jvfs_read", mirrorStack: 8, stop: api.StopAll}
	}
	for _, tc := range []struct {
		flags *probeFlags
		defs  []string
		want  []string // the options of each definition, then the notes
	}{
		{all(), []string{p, r, w}, []string{"args mirror post space", "space atRets", "emulate",
			`--args does not apply to "r20:back vfs_read": only a p definition can be a jprobe.`, `--args does not apply to "w:total rw@user_hot_calls": only a p definition can be a jprobe.`,
			`--mirror does not apply to "r20:back vfs_read": only a p definition can be a jprobe.`, `--mirror does not apply to "w:total rw@user_hot_calls": only a p definition can be a jprobe.`,
			`--post does not apply to "r20:back vfs_read": a return probe has no second record.`, `--post does not apply to "w:total rw@user_hot_calls": a watch has no second record.`,
			`--space does not apply to "w:total rw@user_hot_calls": a watch is for all address spaces.`, `--at-rets does not apply to "p vfs_read": only an r definition has returns.`,
			`--at-rets does not apply to "w:total rw@user_hot_calls": only an r definition has returns.`, `--emulate does not apply to "p vfs_read": only a watch can be emulated.`,
			`1 more flags do not apply to a definition.`}},
		{&probeFlags{space: "any", emulate: true}, []string{p, r}, []string{"emulate", "emulate"}},
		{&probeFlags{space: "0x1000"}, []string{w}, []string{"space"}},
		{&probeFlags{space: "any", atRets: true}, []string{"-:old", r, "# a note"}, []string{"", "atRets", ""}},
	} {
		var out bytes.Buffer
		run := &command.Run{Env: command.Env{Stderr: &out}}
		specs, err := tc.flags.specs(run, tc.defs, false)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range specs {
			got = append(got, given(s))
			if s.Stop != tc.flags.stop {
				t.Errorf("%s: stop %q, want %q: every kind has it", s.Def, s.Stop, tc.flags.stop)
			}
			if s.Mirror == "" && s.MirrorStack != 0 {
				t.Errorf("%s: a mirror's stack without a mirror", s.Def)
			}
		}
		for l := range strings.Lines(out.String()) {
			got = append(got, strings.TrimSpace(l))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%q:\n%q, want\n%q", tc.defs, got, tc.want)
		}
	}
}
