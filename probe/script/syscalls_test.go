package script

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestSyscallNames: the names are the same as in golang.org/x/sys/unix.
func TestSyscallNames(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_amd64.go"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range regexp.MustCompile(`SYS_(\w+)\s*=\s*(\d+)`).FindAllStringSubmatch(string(text), -1) {
		no, err := strconv.ParseInt(m[2], 10, 32)
		if got := syscallText(no); err != nil || got != strings.ToLower(m[1]) {
			t.Errorf("system call %d is %q, want %q", no, got, strings.ToLower(m[1]))
		}
		n++
	}
	if n < 350 {
		t.Errorf("%d system calls", n)
	}
	for _, no := range []int64{-1, 400, 1 << 20} {
		if got := syscallText(no); got != "unknown system call" {
			t.Errorf("system call %d is %q", no, got)
		}
	}
}
