// Package kvmtest holds what tests ask for /dev/kvm by.
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
// GUESTPROBE_REQUIRE_KVM is 1, with a skip that says why otherwise. It is the only
// function of the project that skips a test, beside those for Linux guests and RequireCommand.
func Require(tb testing.TB) {
	tb.Helper()
	err := usable()
	if err == nil {
		return
	}
	lacks(tb, fmt.Sprintf("a usable /dev/kvm: %v", err))
}

// lacks ends the test as Require does.
func lacks(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv(requireEnv) == "1" {
		tb.Fatalf("%s=1, and this needs %s", requireEnv, what)
	}
	tb.Skipf("SKIP: needs %s (%s=1 makes this a failure)", what, requireEnv)
}

// Examples leaves out the examples of a package where Require would skip, because
// they cannot ask themselves. TestMain calls it before it runs anything.
func Examples() {
	if usable() != nil && os.Getenv(requireEnv) != "1" {
		// Every test binary has the flag (package testing).
		_ = flag.Set("test.skip", "^Example")
	}
}

// usable says why /dev/kvm cannot be used.
func usable() error {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	return err
}
