package linuxtest

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// lockedBuffer is a log.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// TestFilesCopied: probes on a file that the guest does not have yet, by a copy of it, are
// there when it has, in the next boot, too; into a file that is not the copy's nothing is
// written, which the log says once in each boot.
func TestFilesCopied(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			prog, _, _ := program(t)
			other := bytes.Clone(prog)
			other[programPad+0x10] ^= 1 // in the page with work, and not in work
			var log lockedBuffer
			g := boot(t, dir, "sh /copies.sh", func(c *machine.Config) {
				c.VCPUs = 2
				c.Log = slog.New(slog.NewTextHandler(&log, nil))
				var err error
				if c.Linux.Initrd, err = AddFiles(c.Linux.Initrd, fstest.MapFS{"prog": {Data: prog}}); err != nil {
					t.Fatal(err)
				}
			})
			e := g.Engine()
			if err := g.Resume(); err != nil {
				t.Fatal(err)
			}
			g.await("RC ")
			if _, err := g.GiveFile("/prog", other); !errors.Is(err, linux.ErrOtherFile) {
				t.Errorf("a copy of another file: %v", err)
			}
			for path, b := range map[string][]byte{"/tmp/new": prog, "/tmp/wrong": other} {
				if given, err := g.GiveFile(path, b); err != nil || given.Present || given.Functions != 1 {
					t.Errorf("%s: %+v, %v", path, given, err)
				}
			}
			var hits, wrong atomic.Uint64
			count := func(n *atomic.Uint64, path string) *probe.Kprobe {
				return &probe.Kprobe{Symbol: path + ":work", Pre: func(*probe.Context) int { n.Add(1); return 0 }}
			}
			if err := e.Register(count(&hits, "/tmp/new"), count(&wrong, "/tmp/wrong")); err != nil {
				t.Fatal(err)
			}
			told := func() int { return strings.Count(log.String(), "nothing is written to it") }
			for boot := range 2 {
				if boot > 0 {
					if err := g.Reset(context.Background(), nil); err != nil {
						t.Fatal(err)
					}
					if err := g.Resume(); err != nil {
						t.Fatal(err)
					}
					g.await("RC ")
				}
				step := func(answer string) {
					t.Helper()
					g.Type(answer + "\n")
					if got := g.await("RC "); got != "0" {
						t.Errorf("exit code %s", got)
					}
				}
				hits.Store(0)
				for step("go"); hits.Load() == 0 || told() <= boot; {
					step("again")
				}
				hits.Store(0)
				step("go")
				if n := hits.Load(); n != 20*rounds {
					t.Errorf("boot %d: %d hits, want %d", boot, n, 20*rounds)
				}
				step("go")
				g.Type("go\n")
				if was, now, ok := strings.Cut(g.await("SUMS "), " "); !ok || was != now {
					t.Errorf("boot %d: the file that is not the copy's has sum %q, want %q", boot, now, was)
				}
				g.await("RC ") // the script's last, or the next boot's first would be taken for answered
			}
			if wrong.Load() != 0 {
				t.Errorf("%d hits in a file that is not the copy's", wrong.Load())
			}
			if text := log.String(); told() != 2 || strings.Count(text, "file=/tmp/wrong") != 2 {
				t.Errorf("the log, which should have it once for each boot:\n%s", text)
			}
		})
	}
}
