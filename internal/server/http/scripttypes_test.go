package http

import (
	"testing"

	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestScriptTypes: types come from the image's BTF, and of an image that has none from its
// debug information; they say the same.
func TestScriptTypes(t *testing.T) {
	p, err := loadProgram(&options{})
	if err != nil {
		t.Fatal(err)
	}
	btf, err := p.readTypes(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, known := range map[string]event.Types{"BTF": btf, "DWARF": nil} {
		t.Run(name, func(t *testing.T) {
			g, o := newFakeGuest(t, 2), defaultOptions()
			g.types, o.vcpus = known, 2
			h := serveGuest(t, g, o)
			s, start := h.script(api.RunScript{Script: `
kprobe:vfs_read { $f = (struct file *)kaddr("files"); printf("%d %d %s %d\n", args.fd, args.count, str($f[args.fd - 2].path), $f->size);
	print((offsetof(struct task, comm), sizeof(struct task), sizeof(args.buf), sizeof(struct percpu))); print(*$f); }`})
			h.read(0, 77)
			if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
				t.Fatal(err)
			}
			out, warnings, _ := h.rest(s)
			if want := "3 77 /etc/motd 11\n(24, 144, 8, 147456)\n{ .path = "; len(out) < len(want) || out[:len(want)] != want || len(warnings) > 0 {
				t.Errorf("printed\n%s\nwant\n%s\nwarnings %q", out, want, warnings)
			}
		})
	}
}
