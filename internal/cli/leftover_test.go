package cli

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestStaleFolders: clearStale removes folders of killed processes. It keeps folders of running processes, new folders, and everything
// that is not such a folder.
func TestStaleFolders(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	old := time.Now().Add(-time.Minute)
	folder := func(name string, age time.Time) string {
		dir := filepath.Join(tmp, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		owner, err := lockDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(owner.Name(), age, age); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { owner.Close() })
		if strings.Contains(name, "killed") || strings.Contains(name, "young") {
			owner.Close()
		}
		return dir
	}
	killed := folder("guestprobe-killed", old)
	stay := []string{folder("guestprobe-lives", old), folder("guestprobe-young", time.Now()), folder("other-killed", old), filepath.Join(tmp, "guestprobe-link"), filepath.Join(tmp, "guestprobe-empty")}
	elsewhere := filepath.Join(tmp, "other-killed")
	if err := os.Symlink(elsewhere, stay[3]); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(stay[4], 0o700); err != nil {
		t.Fatal(err)
	}
	linked := folder("guestprobe-killed-link", old)
	if err := os.Remove(filepath.Join(linked, ownerName)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(elsewhere, ownerName), filepath.Join(linked, ownerName)); err != nil {
		t.Fatal(err)
	}
	clearStale()
	if _, err := os.Lstat(killed); !os.IsNotExist(err) {
		t.Errorf("%s: %v", killed, err)
	}
	for _, dir := range append(stay, linked) {
		if _, err := os.Lstat(dir); err != nil {
			t.Error(err)
		}
	}
}

// TestCheckKilled: when a check is killed, its daemon ends too, and the next check removes its folder.
func TestCheckKilled(t *testing.T) {
	kvmtest.Require(t)
	ctx := patience.Context(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp("", "gp") // a short path, because it contains a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	for name, text := range map[string]string{"long.bt": "interval:s:3600 { exit(); }", "quick.bt": "BEGIN { exit(); }"} {
		if err := os.WriteFile(filepath.Join(tmp, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(name string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, self, "check", filepath.Join(tmp, name))
		cmd.Args[0], cmd.Env = "guestprobe", append(os.Environ(), "TMPDIR="+tmp)
		return cmd
	}
	long := check("long.bt")
	if err := long.Start(); err != nil {
		t.Fatal(err)
	}
	var folder string
	for {
		if at, _ := filepath.Glob(filepath.Join(tmp, "guestprobe-*", "s")); len(at) == 1 {
			folder = filepath.Dir(at[0])
			break
		}
		select {
		case <-ctx.Done():
			t.Fatal("no daemon serves")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := long.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = long.Wait() // killed
	for withFile(t, folder) > 0 {
		select {
		case <-ctx.Done():
			t.Fatal("its daemon lives")
		case <-time.After(10 * time.Millisecond):
		}
	}
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(filepath.Join(folder, ownerName), old, old); err != nil {
		t.Fatal(err)
	}
	if out, err := check("quick.bt").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "guestprobe-*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// withFile returns the number of processes with the folder in their command line.
func withFile(t *testing.T, folder string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))); pid == os.Getpid() {
			continue
		}
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), folder) {
			n++
		}
	}
	return n
}

// TestHostileCounts: sums of counts from a fleet's daemons do not overflow, and negative counts subtract nothing.
func TestHostileCounts(t *testing.T) {
	huge := api.Probe{Name: "g/e", Kind: "r", InUse: math.MaxInt}
	huge.Stats.Hits, huge.Stats.Handled, huge.Stats.Filtered, huge.Stats.Missed, huge.Stats.Lost = math.MaxUint64, math.MaxUint64-1, math.MaxUint64, math.MaxUint64, math.MaxUint64
	small := api.Probe{Name: "g/e", Kind: "r", InUse: 7}
	small.Stats.Hits, small.Stats.Handled, small.Stats.Filtered, small.Stats.Missed, small.Stats.Lost = 5, 5, 5, 5, 5
	negative := small
	negative.InUse = -1000
	ps := []api.Probe{huge, small, negative}
	const most = math.MaxUint64
	if got, want := totals(ps, []string{"a", "b", "c"}), (totalCounts{Name: "g/e", Daemons: 3, Probes: 3, Hits: most, Handled: most, Filtered: most, Missed: most, Lost: most}); len(got) != 1 || got[0] != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, k := range countKinds(ps) {
		if k.Kind == "r" && (k.Hits != most || k.Handled != most || k.Filtered != most || k.Missed != most || k.Lost != most || k.InUse != math.MaxInt) {
			t.Errorf("%+v", k)
		}
	}
	if k := countKinds([]api.Probe{small, negative}); k[1].InUse != 7 && k[0].InUse != 7 {
		t.Errorf("%+v", k)
	}
}
