package kvmtest

import (
	"os/exec"
	"testing"
)

// RequireCommand returns where a program is, by which a test checks what is ours. Without it
// the test is skipped, under GUESTPROBE_REQUIRE_KVM, too: that machine lacks no /dev/kvm. CI
// installs those that there are.
func RequireCommand(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Skipf("SKIP: needs %s (Debian's package of that name)", name)
	}
	return path
}
