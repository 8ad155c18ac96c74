package http

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// What the guest does for scripts: three programs read two bytes of a file each.
const readWork = "echo ready;read x;for i in 1 2 3;do /bin/dd if=/etc/passwd of=/dev/null bs=1 count=2;done 2>/dev/null;echo end;read x"

// TestLinuxScriptTypes: a script reads parameters, members, bit fields and the current task of a
// Linux guest by its kernel's types.
func TestLinuxScriptTypes(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			h := serveLinux(t, dir, readWork)
			h.console("ready")
			s, start := h.script(api.RunScript{Script: `
BEGIN { print((sizeof(struct list_head), offsetof(struct list_head, prev), PIDTYPE_TGID, (uint64)PIDTYPE_TGID, (enum pid_type)0)); }
kprobe:vfs_read /comm == "dd" && args.count == 1/ { printf("%s %d\n", str(args.file->f_path.dentry->d_name.name), args.count); @pos[*args.pos] = count(); }
kretprobe:vfs_read /comm == "dd" && args.count == 1/ { @got[retval, args.file->f_path.dentry->d_name.len] = count(); }
kprobe:vfs_open { @self[curtask->comm == comm && curtask->pid == tid && curtask->tgid == pid && curtask->group_leader == curtask] = count(); }
kprobe:vfs_open /str(args.path->dentry->d_name.name) == "busybox"/ { @exec[curtask->in_execve] = count(); }
kprobe:kernel_clone { @clone[args.args->exit_signal, curtask->real_parent->pid] = count(); }
END { $t = *(struct list_head *)0; print($t); }`})
			for _, p := range start.Probes {
				t.Logf("%s runs %s: %s", p.Name, p.Runs, p.OnHost)
			}
			if _, err := h.s.guest.Input(h.ctx, []byte("\n")); err != nil {
				t.Fatal(err)
			}
			h.console("end")
			if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
				t.Fatal(err)
			}
			out, warnings, end := h.rest(s)
			want := regexp.MustCompile(`^\(16, 8, PIDTYPE_TGID, 1, PIDTYPE_PID\)
passwd 1
passwd 1
passwd 1
passwd 1
passwd 1
passwd 1
\{ \.next = 0x0, \.prev = 0x0 \}


@clone\[17, \d+\]: 3
@exec\[[01]\]: 3
@got\[1, 6\]: 6
@pos\[0\]: 3
@pos\[1\]: 3
@self\[true\]: \d+
$`)
			if !want.MatchString(out) || end.Lost != 0 || len(warnings) != 1 || !regexp.MustCompile(`WARNING: Bad address`).MatchString(warnings[0]) {
				t.Errorf("printed\n%s\nwarnings %q, end %+v", out, warnings, end)
			}
		})
	}
}
