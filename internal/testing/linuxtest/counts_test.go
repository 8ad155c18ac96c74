package linuxtest

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// counted are functions that the load of counts.sh calls, and nothing else does.
var counted = []string{
	"__x64_sys_mkdir", "__x64_sys_rename", "__x64_sys_rmdir", "__x64_sys_symlink", "__x64_sys_readlink", "__x64_sys_unlink",
	"__x64_sys_kill", "__x64_sys_execve", "__x64_sys_exit_group", "__x64_sys_wait4",
}

// TestCounts: a probe counts the calls that the kernel's own kprobe on the same function
// counts, and its function tracer, no more and no fewer, as an int3 and as a jump, on one vCPU and on
// several.
func TestCounts(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		for _, jumps := range []bool{false, true} {
			for _, n := range vcpus() {
				name := fmt.Sprintf("%s/%s/%d", filepath.Base(dir), map[bool]string{false: "int3", true: "jump"}[jumps], n)
				t.Run(name, func(t *testing.T) { counts(t, dir, jumps, n) })
			}
		}
	}
}

// vcpus are the numbers of vCPUs that a guest is tested with.
func vcpus() []int {
	if testing.Short() {
		return []int{1, 2}
	}
	return []int{1, 2, 4}
}

// selectVCPUs is vcpus, and with -short the last of them.
func selectVCPUs() []int {
	all := vcpus()
	if testing.Short() {
		return all[len(all)-1:]
	}
	return all
}

func counts(t *testing.T, dir string, jumps bool, vcpus int) {
	g := boot(t, dir, "sh /counts.sh "+strings.Join(counted, " "), func(c *machine.Config) { c.VCPUs = vcpus })
	e := g.Engine()
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	g.await("READY")
	if err := e.SetOptimization(jumps); err != nil {
		t.Fatal(err)
	}
	ps := make([]*probe.Kprobe, len(counted))
	for i, name := range counted {
		ps[i] = &probe.Kprobe{Symbol: name, Pre: func(*probe.Context) int { return 0 }}
	}
	// At a mark the shell does nothing else, so that no count changes.
	var mu sync.Mutex
	var marks [][]probe.Stats
	mark := &probe.Kprobe{Symbol: "set_fs_pwd", Pre: func(*probe.Context) int {
		at := make([]probe.Stats, len(ps))
		for i, p := range ps {
			at[i], _, _ = e.Stats(p)
		}
		mu.Lock()
		defer mu.Unlock()
		marks = append(marks, at)
		return 0
	}}
	if err := e.Register(append(probe.Probes(ps), mark)...); err != nil {
		t.Fatal(err)
	}
	if jumps {
		if err := e.Optimize(); err != nil {
			t.Fatal(err)
		}
	}
	g.Type("go\n")
	kernel, traced := map[string]string{}, map[string]string{}
	for line := ""; line != "COUNTED"; {
		line = g.line("COUNTED")
		if rest, ok := strings.CutPrefix(line, "COUNT "); ok {
			name, count, _ := strings.Cut(rest, " ")
			kernel[name] = count
		}
		if rest, ok := strings.CutPrefix(line, "TRACED "); ok {
			name, count, _ := strings.Cut(rest, " ")
			traced[name] = count
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(marks) != 2 {
		t.Fatalf("%d marks, want 2", len(marks))
	}
	for i, name := range counted {
		ours := fmt.Sprintf("%d %d", marks[1][i].Hits-marks[0][i].Hits, marks[1][i].Missed-marks[0][i].Missed)
		info, _ := e.Info(ps[i])
		t.Logf("%-22s hits and misses %-6s by the kernel's own count %-6s traced %s optimized %v %s", name, ours, kernel[name], traced[name], info.Optimized, info.Unoptimized.Reason)
		if ours != kernel[name] || ours != traced[name]+" 0" || ours == "0 0" {
			t.Errorf("%s: %s hits and misses, by the kernel's own count %q, by its function tracer %q", name, ours, kernel[name], traced[name])
		}
	}
}
