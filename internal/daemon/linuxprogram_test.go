package daemon

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/kvmtest"
)

// serveLinux starts a daemon with the Linux guest in dir, which runs command. changes have the
// last word on the daemon's options.
func serveLinux(t *testing.T, dir, command string, changes ...func(*options)) *harness {
	t.Helper()
	o := defaultOptions()
	o.kernel, o.initrd, o.memory, o.vcpus = filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd"), 256<<20, 1
	o.cmdline = "console=ttyS0 quiet panic=-1 -- " + command
	for _, change := range changes {
		change(&o)
	}
	h := newHarness(t)
	p, err := loadProgram(&o)
	if err != nil {
		t.Fatal(err)
	}
	g, err := newMachineGuest(&o, p, h.logger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h.serve(g, o)
}

// console waits for a line of the guest.
func (h *harness) console(line string) {
	h.Helper()
	sub, history := h.s.guest.Console(1 << 12)
	defer sub.Close()
	var all []string
	for _, l := range history {
		if all = append(all, l.Text); l.Text == line {
			return
		}
	}
	for {
		select {
		case l, ok := <-sub.C():
			if all = append(all, l.Text); ok && l.Text == line {
				return
			} else if ok {
				continue
			}
		case <-h.ctx.Done():
		}
		h.Fatalf("no line %q:\n%s\n%s", line, strings.Join(all, "\n"), h.log.String())
	}
}

// What the guest does: it makes and removes 30 files, and asks for 31 that are not there.
// A kernel passes no more than 32 words to its first process.
const fileWork = "echo ready;read x;cd /tmp;for i in $(seq 30);do echo >gp$i;rm gp$i;cat gp$i;done 2>/dev/null;unlink gpnone;cat gpnone;echo end;read x"

// TestLinuxPrograms: programs of all kinds of sections count what a Linux guest does, by
// its kernel's types.
func TestLinuxPrograms(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			h := serveLinux(t, dir, fileWork)
			h.console("ready")
			ps, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "linux.o")})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range ps {
				t.Logf("%s runs %s: %s", p.Name, p.Runs, p.OnHost)
			}
			if _, err := h.s.guest.Input(h.ctx, []byte("\n")); err != nil {
				t.Fatal(err)
			}
			h.console("end")
			d, err := h.c.Map(h.ctx, "counts")
			if err != nil {
				t.Fatal(err)
			}
			for what, want := range []string{"30", "31", "30", "31", "30", "30"} {
				if got := string(d.Values[what].Data[0]); got != want {
					t.Errorf("count %d is %s, want %s", what, got, want)
				}
			}
			for _, p := range ps {
				now, _ := h.c.Probe(h.ctx, p.Name)
				t.Logf("%s: %+v %+v", p.Name, now.Stats, now.Program)
			}
		})
	}
}

// TestLinuxReads: definitions read what is at a Linux guest's kernel addresses: on its
// heap and on its stacks, which with 5-level paging are addresses of 57 bits.
func TestLinuxReads(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			h := serveLinux(t, dir, "echo ready;read x;for i in 1 2 3;do cat /etc/passwd;done >/dev/null;echo end;read x")
			h.console("ready")
			h.attach("p:heap vfs_open name=path->dentry->d_name.name:string", "p:stack kernel_clone signal=args->exit_signal")
			s := h.stream(h.ctx, api.StreamEvents{})
			next[api.Start](h, s, api.RecordStart)
			if _, err := h.s.guest.Input(h.ctx, []byte("\n")); err != nil {
				t.Fatal(err)
			}
			opened, forked := 0, 0
			for opened < 3 || forked < 3 {
				hit := next[api.Hit](h, s, api.RecordHit)
				switch text := hit.Args[0].Text; {
				case strings.Contains(hit.Text, "(fault)"):
					t.Fatal(hit.Text)
				case text == `"passwd"`:
					opened++
				case text == "17": // SIGCHLD
					forked++
				}
			}
			h.console("end")
		})
	}
}
