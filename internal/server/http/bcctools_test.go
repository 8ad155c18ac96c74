package http

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
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
			g := bootLoads(t, dir, "mke2fs /dev/vda >/dev/null;mkdir /mnt;mount -t ext4 /dev/vda /mnt;")
			for _, tool := range bccTools {
				t.Run(tool.name, func(t *testing.T) {
					start := time.Now()
					object, err := os.ReadFile(filepath.Join(tools, strings.Fields(tool.name)[0]))
					if err != nil {
						t.Fatal(err)
					}
					r := g.runTool(t, tool, object, g.pid)
					want := g.load(t, tool.name)
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
