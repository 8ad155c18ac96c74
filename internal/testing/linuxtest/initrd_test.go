package linuxtest

import (
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestInitrd: scripts/linux/initrd.sh packs the modules that it is told of, and what these need, and files where
// they are to be; what it cannot pack it refuses, and leaves nothing behind.
func TestInitrd(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("bin/busybox", "", 0o755)
	write("bin/cpio", "#!/bin/sh\ntr '\\0' '\\n'\n", 0o755) // the names that it is given
	write("k/lib/modules/1/kernel/one-a.ko", "depends=two\x00", 0o644)
	write("k/lib/modules/1/kernel/two.ko", "depends=\x00", 0o644)
	write("k/lib/modules/1/kernel/lost.ko", "depends=none\x00", 0o644)
	write("k/lib/modules/1/modules.builtin", "kernel/x.ko\nkernel/in-side.ko\n", 0o644)
	write("tmp/keep", "", 0o644)
	run := func(args ...string) (names []string, said string) {
		t.Helper()
		out := filepath.Join(dir, "out")
		cmd := exec.Command("../../../scripts/linux/initrd.sh", append([]string{out, "--kernel", filepath.Join(dir, "k")}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "TMPDIR="+filepath.Join(dir, "tmp"))
		var text strings.Builder
		cmd.Stderr = &text
		err := cmd.Run()
		if left, _ := os.ReadDir(filepath.Join(dir, "tmp")); len(left) != 1 {
			t.Errorf("%q: left %v", args, left)
		}
		if _, missing := os.Stat(out); (missing == nil) != (err == nil) {
			t.Errorf("%q: %v, %v", args, err, missing)
		}
		if err != nil {
			return nil, text.String()
		}
		defer os.Remove(out)
		f, err := os.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(string(b), "\n"), text.String()
	}
	names, said := run("--modules", "one_a,in_side,?none", "--carry", "?none", "--file", filepath.Join(dir, "tmp/keep")+":/etc/x/y")
	for _, want := range []string{"./lib/modules/one_a.ko", "./lib/modules/two.ko", "./etc/x/y", "./etc/modules"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %q (%s)", want, names, said)
		}
	}
	for want, args := range map[string][]string{
		"has no module none":          {"--modules", "two,none"},
		"has no module oneb":          {"--carry", "oneb"},
		"no module none, and has":     {"--modules", "lost"}, // what it needs
		"a/b is no name of a module":  {"--modules", "a/b"},
		"begins with /":               {"--file", filepath.Join(dir, "tmp/keep") + ":etc/x"},
		"and has no ..":               {"--file", filepath.Join(dir, "tmp/keep") + ":/../x"},
		"/nosuch is not there":        {"--file", "/nosuch"},
		"--modules needs a value":     {"--modules"},
		"--modules and --carry need ": {"--kernel", "", "--carry", "two"},
	} {
		if _, said := run(args...); !strings.Contains(said, want) {
			t.Errorf("%q: said %q", args, said)
		}
	}
}
