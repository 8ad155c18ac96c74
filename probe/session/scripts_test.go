package session_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/script"
	"github.com/guestprobe/guestprobe/probe/session"
)

// read makes vCPU cpu hit vfs_read.
func (b *bare) read(cpu int, count uint64) {
	b.Helper()
	b.hit(cpu, "vfs_read", 0, func(r *probe.Regs) { r.RDI, r.RDX = 3, count })
}

// TestScriptOutput follows a script from BEGIN to END: its output, in order, and its maps.
func TestScriptOutput(t *testing.T) {
	b := newBare(t)
	x := sessiontest.Start(t, b.s, `BEGIN { printf("begin\n"); @x = 1; }
kprobe:vfs_read { @x++; @[arg2] = count(); @h = hist(arg2); printf("%s %d\n", func, arg2); }
END { printf("end\n"); }`, session.ScriptOptions{})
	if ps := x.Probes(); len(ps) != 1 || x.CompiledScript().CountProbes() != 3 || ps[0].Site.InGuest || !ps[0].Enabled {
		t.Errorf("begun %+v", ps)
	}
	for cpu, n := range []uint64{7, 100} {
		b.read(cpu, n)
		b.read(cpu, 7)
	}
	if ms := b.s.Maps(); len(ms) != 5 { // @, @h, @x, the ring and the sites
		t.Errorf("maps %+v", ms)
	}
	out, warnings, gone := x.End()
	want := `begin
vfs_read 7
vfs_read 7
vfs_read 100
vfs_read 7
end


@[100]: 1
@[7]: 3
@h:
[4, 8)                 3 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[8, 16)                0 |                                                    |
[16, 32)               0 |                                                    |
[32, 64)               0 |                                                    |
[64, 128)              1 |@@@@@@@@@@@@@@@@@                                   |

@x: 5
`
	if out != want || len(warnings) > 0 {
		t.Errorf("printed\n%s\nwant\n%s\nwarnings %q", out, want, warnings)
	}
	if len(gone) != 1 || gone[0].Stats.Handled != 4 || len(b.s.Maps())+len(b.s.Probes()) != 0 {
		t.Errorf("at the end %+v", gone)
	}
	b.identical(true)
}

// TestScriptErrors: errors in scripts have a position, and nothing stays attached.
func TestScriptErrors(t *testing.T) {
	b := newBare(t)
	for _, c := range []struct {
		script      string
		errno       syscall.Errno
		message     string
		source      string
		mark, width int
	}{
		{"BEGIN { print(fake); }", syscall.EINVAL, "stdin:1:15-19: ERROR: Unknown identifier: 'fake'", "BEGIN { print(fake); }", 14, 4},
		{"kprobe:vfs_red { }", syscall.EINVAL, "stdin:1:1-15: ERROR: No matches for kprobe vfs_red", "kprobe:vfs_red { }", 0, 14},
		{"BEGIN { }\nkprobe:vfs_read+1 { }", syscall.EILSEQ, "stdin:2:1-18: ERROR: kprobe:vfs_read+1: Probe point is not an instruction boundary (vfs_read+0x1 is inside an instruction)", "kprobe:vfs_read+1 { }", 0, 17},
	} {
		_, err := b.s.StartScript(c.script, session.ScriptOptions{})
		e := b.checkRefused(err, session.CodeBadScript)
		var at *script.Error
		if !errors.As(err, &at) || c.errno != syscall.EINVAL && e.Errno != c.errno || strings.SplitN(at.Error(), "\n", 2)[0] != c.message || at.Source != c.source || at.Mark != c.mark || at.Width != c.width {
			t.Errorf("%s: %+v", c.script, err)
		}
	}
	if len(b.s.Maps())+len(b.s.Probes()) != 0 {
		t.Error("something is left")
	}
	b.identical(true)
}

// TestScriptFaults: an error at run time gives a warning with its position and count.
func TestScriptFaults(t *testing.T) {
	b := newBare(t)
	x := sessiontest.Start(t, b.s, "kprobe:vfs_read { if (arg2 == 1) { while (1) { $x = 1; } }\n@s = str(arg0); }", session.ScriptOptions{})
	b.read(0, 1)
	b.read(0, 2)
	b.read(1, 2)
	_, warnings, _ := x.End()
	all := strings.Join(warnings, "\n")
	for _, want := range []string{"stdin:1:", "WARNING: instruction budget used up", "stdin:2:6-15: WARNING: Bad address (2 times)\n@s = str(arg0); }\n     ~~~~~~~~~"} {
		if !strings.Contains(all, want) {
			t.Errorf("warnings\n%s\nwant %s", all, want)
		}
	}
}

// TestScriptReadsAnywhere: programs that do not run on a hit can also read the memory of the guest's kernel. The text of errorf is a warning.
func TestScriptReadsAnywhere(t *testing.T) {
	b := newBare(t)
	sym, err := b.img.Lookup("vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	x := sessiontest.Start(t, b.s, `BEGIN { printf("%rh\n", buf(kaddr("vfs_read"), 5)); print(*(uint64 *)0x10); assert(*(uint8 *)kaddr("vfs_read") == 1, "one"); print("never"); }`, session.ScriptOptions{})
	x.Wait()
	code, _ := x.Exit()
	out, warnings, _ := x.End()
	if want := fmt.Sprintf("% x\n0\n\n\n", b.img.Code(sym.Addr, 5)); out != want || code != 1 {
		t.Errorf("printed %q, want %q; status %d", out, want, code)
	}
	if len(warnings) != 2 || warnings[0] != "stdin:1:77-124: ERROR: assert failed: one" || !strings.Contains(warnings[1], "WARNING: Bad address") {
		t.Errorf("warnings %q", warnings)
	}
}

// TestScriptTypes: types come from the image's BTF, or without BTF from its debug information. Both give the same types.
func TestScriptTypes(t *testing.T) {
	img := builtinWith(t)
	for name, o := range map[string]session.Options{"BTF": {Types: typesOf(t, img)}, "DWARF": {Source: sourceOf(img)}} {
		t.Run(name, func(t *testing.T) {
			b := newBareWith(t, img, nil, o)
			x := sessiontest.Start(t, b.s, `
kprobe:vfs_read { $f = (struct file *)kaddr("files"); printf("%d %d %s %d\n", args.fd, args.count, str($f[args.fd - 2].path), $f->size);
	print((offsetof(struct task, comm), sizeof(struct task), sizeof(args.buf), sizeof(struct percpu))); print(*$f); }`, session.ScriptOptions{})
			b.read(0, 77)
			out, warnings, _ := x.End()
			if want := "3 77 /etc/motd 11\n(24, 144, 8, 147456)\n{ .path = "; !strings.HasPrefix(out, want) || len(warnings) > 0 {
				t.Errorf("printed\n%s\nwant\n%s\nwarnings %q", out, want, warnings)
			}
		})
	}
}
