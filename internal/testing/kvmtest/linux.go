package kvmtest

import (
	"os"
	"path/filepath"
	"testing"
)

// linuxEnv is the environment variable that names a folder of Linux guests, made
// by scripts/linux/guests.sh. The nested hosts set it. A guest takes seconds to
// boot on a processor and half an hour on kvm_pvm, which emulates kernel code.
// So without it no test boots one.
const linuxEnv = "GUESTPROBE_LINUX"

// RequireLinux returns the folders of the Linux guests that tests should boot,
// at least one, each with a vmlinuz and an initrd. Without linuxEnv it ends the
// test with a skip; it also requires /dev/kvm, as Require does.
func RequireLinux(tb testing.TB) []string {
	tb.Helper()
	dir := os.Getenv(linuxEnv)
	if dir == "" {
		tb.Skipf("SKIP: needs Linux guests (scripts/linux/guests.sh DIR, %s=DIR; scripts/nested.sh does it)", linuxEnv)
	}
	Require(tb)
	images, err := filepath.Glob(filepath.Join(dir, "*", "vmlinuz"))
	if err != nil || len(images) == 0 {
		tb.Fatalf("%s=%s has no */vmlinuz (%v)", linuxEnv, dir, err)
	}
	for i := range images {
		images[i] = filepath.Dir(images[i])
	}
	return images
}

// Suites is the folder of a guest's folder that has the kernel's own suites, made by
// scripts/linux/suites.sh.
const Suites = "suites"

// RequireSuite returns the folders of RequireLinux that have a file of the
// kernel's suites. If none has, it ends the test with a skip, or with a failure
// where /dev/kvm is required.
func RequireSuite(tb testing.TB, file string) (dirs []string) {
	tb.Helper()
	for _, dir := range RequireLinux(tb) {
		if _, err := os.Stat(filepath.Join(dir, Suites, file)); err == nil {
			dirs = append(dirs, dir)
		}
	}
	if len(dirs) == 0 {
		skipOrFail(tb, "the kernel's suites, with "+file+" (scripts/linux/guests.sh --suites DIR)")
	}
	return dirs
}

// RequireTools returns the folder of bcc's libbpf-tools beside the Linux guests,
// as the distribution packages them (scripts/linux/guests.sh --tools). Without
// the folder it ends the test with a skip, or with a failure where /dev/kvm is
// required.
func RequireTools(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(os.Getenv(linuxEnv), "tools")
	if _, err := os.Stat(dir); err != nil {
		skipOrFail(tb, "bcc's libbpf-tools (scripts/linux/guests.sh --tools DIR)")
	}
	return dir
}
