package kvmtest

import (
	"fmt"
	"os/exec"
	"testing"
)

// RequireCommand returns the path of a program that a test compares ours with.
// Without it the test is skipped, also under GUESTPROBE_REQUIRE_KVM, which only
// demands /dev/kvm. CI installs the available programs.
func RequireCommand(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Skipf("SKIP: needs %s (Debian's package of that name)", name)
	}
	return path
}

// RequireModule downloads the modules that the module in dir needs, which are not
// ours, into Go's module cache. If that fails, it ends the test as Require does.
func RequireModule(tb testing.TB, dir string) {
	tb.Helper()
	cmd := exec.Command("go", "mod", "download")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		skipOrFail(tb, fmt.Sprintf("the modules of %s/go.mod: go mod download: %v: %s", dir, err, out))
	}
}
