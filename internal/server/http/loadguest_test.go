package http

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/guestprobe/guestprobe/internal/testing/linuxtest"
	"github.com/guestprobe/guestprobe/kvm/device"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

// loadGuest is a Linux guest with this test's own program, which does the loads.
type loadGuest struct {
	*harness
	pid     string // of the program
	console <-chan machine.ConsoleLine
	history []machine.ConsoleLine
}

// bootLoads boots a guest with a disk of 4 MiB, /dev/vda, and one vCPU. prepare are commands that it runs before the program, each
// ended by a semicolon.
func bootLoads(t *testing.T, dir, prepare string) *loadGuest {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	initrd, err := os.ReadFile(filepath.Join(dir, "initrd"))
	if err != nil {
		t.Fatal(err)
	}
	if initrd, err = linuxtest.AddFiles(initrd, fstest.MapFS{bccGuest[1:]: {Data: self}}); err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	disk := filepath.Join(tmp, "disk")
	if err := os.WriteFile(filepath.Join(tmp, "initrd"), initrd, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(disk, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	h := serveLinux(t, dir, prepare+"umount -l /proc;GOMAXPROCS=1 GODEBUG=asyncpreemptoff=1 "+bccGuest, func(o *options) {
		o.initrd, o.memory = filepath.Join(tmp, "initrd"), 512<<20
		o.disks = []device.Disk{{Path: disk}}
	})
	lines, history := h.s.guest.Console(1 << 12)
	t.Cleanup(lines.Close)
	g := &loadGuest{harness: h, console: lines.C(), history: history}
	said := g.readUntil(t, "PID ")
	g.pid = strings.TrimPrefix(said[len(said)-1], "PID ")
	return g
}

// readUntil returns the lines of the console up to the next with this prefix.
func (g *loadGuest) readUntil(t *testing.T, prefix string) (said []string) {
	t.Helper()
	for {
		var line string
		if len(g.history) > 0 {
			line, g.history = g.history[0].Text, g.history[1:]
		} else {
			select {
			case l := <-g.console:
				line = l.Text
			case <-g.ctx.Done():
				t.Fatalf("the guest printed %q, and no line with %s", said, prefix)
			}
		}
		said = append(said, line)
		if strings.HasPrefix(line, prefix) {
			return said
		}
	}
}

// ask sends the program a line.
func (g *loadGuest) ask(t *testing.T, line string) {
	t.Helper()
	if _, err := g.s.guest.Input(g.ctx, []byte(line+"\n")); err != nil {
		t.Fatal(err)
	}
}

// load has the program do the load of a tool, and returns what that was.
func (g *loadGuest) load(t *testing.T, tool string) []string {
	t.Helper()
	g.ask(t, tool)
	return g.readLoad(t, tool)
}

// readLoad waits for the end of a load, and returns what it was.
func (g *loadGuest) readLoad(t *testing.T, tool string) (want []string) {
	t.Helper()
	for _, line := range g.readUntil(t, "DONE "+tool) {
		if rest, is := strings.CutPrefix(line, "WANT "); is {
			want = append(want, rest)
		}
	}
	return want
}
