package http

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// What the guest does: it reads two files, the first of them five times, and says how that went.
const openWork = "echo ready;read x;for f in etc/passwd dev/null etc/passwd etc/passwd etc/passwd etc/passwd;do cat /$f >/dev/null;echo opened $f $?;done;echo end;read x"

// TestLinuxOverride: opening one file of a Linux guest fails twice with the error that was
// asked for, and is told as that by the program that opens it; nothing else fails.
func TestLinuxOverride(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			h := serveLinux(t, dir, openWork)
			h.console("ready")
			times := int64(2)
			if _, err := h.c.Attach(h.ctx, api.ProbeSpec{
				Def: "p:fail do_sys_openat2 file=+0($arg2):ustring", Filter: `file == "/etc/passwd"`, Unsafe: true,
				Override: &api.Override{Value: -2, After: 1, Times: &times},
			}); err != nil {
				t.Fatal(err)
			}
			sub, _ := h.s.guest.Console(1 << 12)
			defer sub.Close()
			if _, err := h.s.guest.Input(h.ctx, []byte("\n")); err != nil {
				t.Fatal(err)
			}
			h.console("end")
			var got []string
			for l := range sub.C() {
				if l.Text == "end" {
					break
				}
				if strings.HasPrefix(l.Text, "opened ") || strings.Contains(l.Text, "No such file") {
					got = append(got, l.Text[strings.LastIndexByte(l.Text, ':')+1:])
				}
			}
			const none = " No such file or directory"
			want := []string{"opened etc/passwd 0", "opened dev/null 0", none, "opened etc/passwd 1", none, "opened etc/passwd 1", "opened etc/passwd 0", "opened etc/passwd 0"}
			if strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("the guest says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			p, err := h.c.Probe(h.ctx, "fail")
			if err != nil || p.Override.Injected != 2 || p.Stats.Handled != 5 {
				t.Errorf("injected %+v of %d hits, want 2 of 5 (%v)", p.Override, p.Stats.Handled, err)
			}
		})
	}
}
