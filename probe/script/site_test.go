package script

import (
	"strings"
	"testing"
)

// TestFailuresInJSON: what fails while a script runs is a line of its JSON, with the kernel's helper that bpftrace would have called.
func TestFailuresInJSON(t *testing.T) {
	const bad = `{"type": "helper_error", "msg": "Bad address", "helper": "`
	const at = `", "retcode": -14, "filename": "stdin", "line": 1, "col": `
	at0 := func(fn string) hit { return hit{fn: fn, args: [6]uint64{0, 0, 0, 0x9000}} }
	for _, c := range []struct {
		script, want string
		hits         []hit
	}{
		// The column is that of the operand, without parentheses around it.
		{`struct foo {int a;}; uprobe:main { $tmp = ((struct foo*) arg0).a; exit(); }`, bad + "probe_read_user" + at + "44}", []hit{at0("main")}},
		{`struct foo {int a;}; kprobe:vfs_read { $tmp = (((struct foo*) arg0)->a); }`, bad + "probe_read_kernel" + at + "49}", []hit{at0("vfs_read")}},
		{`kprobe:vfs_read { $x = ((uint8 *)arg0)[3]; }`, bad + "probe_read_kernel" + at + "25}", []hit{at0("vfs_read")}},
		{`kprobe:vfs_read { $x = *(uint8 *)arg0; }`, bad + "probe_read_kernel" + at + "24}", []hit{at0("vfs_read")}},
		{"BEGIN { }\nkprobe:vfs_read { $x = *(uint8 *)arg0; }", bad + `probe_read_kernel", "retcode": -14, "filename": "stdin", "line": 2, "col": 24}`, []hit{at0("vfs_read")}},
		// The helper is that for the address.
		{`kprobe:vfs_read { $x = *(uint8 *)uptr(arg0); }`, bad + "probe_read_user" + at + "24}", []hit{at0("vfs_read")}},
		{`uprobe:main { $x = *(uint8 *)kptr(arg0); }`, bad + "probe_read_kernel" + at + "20}", []hit{at0("main")}},
		{`kprobe:vfs_read { $x = str(arg0); }`, bad + "probe_read_kernel_str" + at + "24}", []hit{at0("vfs_read")}},
		{`uprobe:main { $x = str(arg0); }`, bad + "probe_read_user_str" + at + "20}", []hit{at0("main")}},
		{`uprobe:main, kprobe:vfs_read { $x = str(arg0); }`, bad + "probe_read_kernel_str" + at + "37}", []hit{at0("main")}},
		{`uprobe:main { $x = buf(arg0, 4); }`, bad + "probe_read_user" + at + "20}", []hit{at0("main")}},
		{`uprobe:main { $x = *(uint8 *)curtask; }`, bad + "probe_read_kernel" + at + "20}", []hit{at0("main")}},
		// Each place has one line, and a second one at the end if it failed again.
		{`uprobe:main { $x = str(arg0); }`, bad + "probe_read_user_str" + at + `20, "count": 2}`, []hit{at0("main"), at0("main")}},
		{`config = { max_map_keys = 1 } uprobe:main { @[1] = 1; @[2] = 1; }`, `{"type": "map", "data": {"@": {"1": 1}}}` + "\n" +
			`{"type": "helper_error", "msg": "Argument list too long", "helper": "map_update_elem", "retcode": -7, "filename": "stdin", "line": 1, "col": 55}`, []hit{at0("main")}},
		{`uprobe:main { @[kstack] = 1; }`, `{"type": "map", "data": {"@": {"\n": 1}}}` + "\n" + bad + "get_stackid" + at + "17}", []hit{at0("main")}},
		// Nothing of the kernel's has failed.
		{`uprobe:main { print((1 + arg0) / arg1); }`, `{"type": "value", "data": 1}` + "\n" + `{"type": "runtime_error", "msg": "` + siteDivide + `", "filename": "stdin", "line": 1, "col": 22}`, []hit{at0("main")}},
		{`uprobe:main { $a = (uint8[2])(uint16)1; $i = (uint8)(arg0 + 2); print($a[$i]); }`, `{"type": "value", "data": 0}` + "\n" +
			`{"type": "runtime_error", "msg": "` + siteBounds + `", "filename": "stdin", "line": 1, "col": 71}` + "\n" + bad + "probe_read_user" + at + "71}", []hit{at0("main")}},
	} {
		r, err := runScript(t, c.script, nil, true, 0, c.hits...)
		if got := strings.TrimSpace(r.out); err != nil || r.warnings != "" || got != c.want {
			t.Errorf("%s\nprints   %s\nwant     %s\nwarnings %q, %v", c.script, got, c.want, r.warnings, err)
		}
	}
}

// TestReadsUser: pointers in the records of system calls are the caller's; a removed probe has no user code.
func TestReadsUser(t *testing.T) {
	field := &expr{kind: exField, inRecord: true, args: []*expr{{kind: exBuiltin, name: "args"}}}
	text := &expr{kind: exCall, name: "str", args: []*expr{field}}
	open := []*point{{fn: "syscalls:sys_enter_openat"}}
	both := append(open[:1:1], &point{fn: "sched:sched_process_exec"})
	if !readsUser(open, text) || readsUser(open, field) || readsUser(both, text) || readsUser(nil, text) || readsUser(nil, &expr{}) {
		t.Error("the wrong space of addresses")
	}
}
