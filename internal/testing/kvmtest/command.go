package kvmtest

import (
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
