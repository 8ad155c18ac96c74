// Package kvmtest has the functions with which tests require /dev/kvm.
package kvmtest

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// requireEnv is the environment variable under which a missing /dev/kvm is a
// failure instead of a skip. CI sets it to 1.
const requireEnv = "GUESTPROBE_REQUIRE_KVM"

// Require ends the test when /dev/kvm cannot be opened: with a failure when
// GUESTPROBE_REQUIRE_KVM is 1, otherwise with a skip that says why. It is the
// only function of the project that skips a test, apart from the ones for Linux
// guests, RequireCommand and RequireModule.
func Require(tb testing.TB) {
	tb.Helper()
	err := usableError()
	if err == nil {
		return
	}
	skipOrFail(tb, fmt.Sprintf("a usable /dev/kvm: %v", err))
}

// skipOrFail ends the test as Require does.
func skipOrFail(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv(requireEnv) == "1" {
		tb.Fatalf("%s=1, and this needs %s", requireEnv, what)
	}
	tb.Skipf("SKIP: needs %s (%s=1 makes this a failure)", what, requireEnv)
}

// RequireRoot skips a test that needs the rights of root.
func RequireRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("SKIP: needs root")
	}
}

// Examples removes the examples of a package if Require would skip, because they
// cannot call it themselves, and reports whether they run. TestMain calls it before it
// runs anything.
func Examples() bool {
	if usableError() != nil && os.Getenv(requireEnv) != "1" {
		// Every test binary has the flag (package testing).
		_ = flag.Set("test.skip", "^Example")
		return false
	}
	return true
}

// usableError says why /dev/kvm cannot be used.
func usableError() error {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	return err
}
