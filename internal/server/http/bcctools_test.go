package http

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/linuxtest"
	"github.com/guestprobe/guestprobe/kvm/device"
)

// TestLinuxTools: the programs of bcc's libbpf-tools, as Debian packages them, report what a
// Linux guest has done: each call with what it was given and what it returned, or the counts.
func TestLinuxTools(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var major, minor int
			if fmt.Sscanf(filepath.Base(dir), "%d.%d", &major, &minor); major > 6 || major == 6 && minor > 2 {
				t.Log("the package's tools (0.26, of 2023) do not know this kernel: the field by which filelife tells the arguments of vfs_unlink has another name since 6.3")
				return
			}
			tools := kvmtest.RequireTools(t)
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
			h := serveLinux(t, dir, "mke2fs /dev/vda >/dev/null;mkdir /mnt;mount -t ext4 /dev/vda /mnt;umount -l /proc;GOMAXPROCS=1 "+bccGuest, func(o *options) {
				o.initrd, o.memory = filepath.Join(tmp, "initrd"), 512<<20
				o.disks = []device.Disk{{Path: disk}}
			})
			lines, history := h.s.guest.Console(1 << 12)
			defer lines.Close()
			until := func(prefix string) (said []string) {
				t.Helper()
				for {
					var line string
					if len(history) > 0 {
						line, history = history[0].Text, history[1:]
					} else {
						select {
						case l := <-lines.C():
							line = l.Text
						case <-h.ctx.Done():
							t.Fatalf("the guest has said %q, and no line with %s", said, prefix)
						}
					}
					said = append(said, line)
					if strings.HasPrefix(line, prefix) {
						return said
					}
				}
			}
			said := until("PID ")
			pid := strings.TrimPrefix(said[len(said)-1], "PID ")
			for _, tool := range bccTools {
				t.Run(tool.name, func(t *testing.T) {
					start := time.Now()
					object, err := os.ReadFile(filepath.Join(tools, strings.Fields(tool.name)[0]))
					if err != nil {
						t.Fatal(err)
					}
					r := h.runTool(t, tool, object, pid)
					if _, err := h.s.guest.Input(h.ctx, []byte(tool.name+"\n")); err != nil {
						t.Fatal(err)
					}
					var want []string
					for _, line := range until("DONE " + tool.name) {
						if rest, is := strings.CutPrefix(line, "WANT "); is {
							want = append(want, rest)
						}
					}
					r.end()
					got := tool.got(r)
					r.detach()
					if tool.others {
						got = slices.DeleteFunc(got, func(line string) bool {
							about, _, _ := strings.Cut(line, ":")
							return !slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(w, about+":") })
						})
					}
					if tool.unordered {
						slices.Sort(want)
						slices.Sort(got)
					}
					if len(want) == 0 || !slices.Equal(want, got) {
						t.Errorf("the guest did, by what its kernel has returned:\n%s\nthe tool says:\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
					}
					t.Logf("%d lines, %v: %s", len(want), time.Since(start).Round(time.Millisecond), want[len(want)-1])
				})
			}
		})
	}
}
