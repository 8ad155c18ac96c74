package debuginfo

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/builtin"
)

// subject returns a file with debug information, and a number of addresses in its code:
// the built-in guest, or what GUESTPROBE_DEBUG names, a kernel's vmlinux of many seconds.
// It is nil where that tool, the oracle, is not there.
func subject(t *testing.T, tool string, n int) (path string, i *Info, addrs []uint64) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Logf("no %s: nothing to compare with", tool)
		return "", nil, nil
	}
	path = os.Getenv("GUESTPROBE_DEBUG")
	if path == "" {
		path = filepath.Join(t.TempDir(), "builtin.elf")
		if err := os.WriteFile(path, builtin.ELF(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i, err := Open(path, "")
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for range n {
		s := i.spans[r.IntN(len(i.spans))]
		addrs = append(addrs, s.lo+r.Uint64N(s.hi-s.lo))
	}
	return path, i, addrs
}

// TestFramesByAddr2line wants the frames of addresses that binutils tells.
func TestFramesByAddr2line(t *testing.T) {
	path, i, addrs := subject(t, "addr2line", 3000)
	if path == "" {
		return
	}
	var in bytes.Buffer
	for _, a := range addrs {
		fmt.Fprintf(&in, "%#x\n", a)
	}
	cmd := exec.Command("addr2line", "-a", "-i", "-f", "-e", path)
	cmd.Stdin = &in
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	told := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	bad, inlined := 0, 0
	for _, a := range addrs {
		var want []string
		told = told[1:] // the address
		for len(told) >= 2 && !strings.HasPrefix(told[0], "0x") {
			at, _, _ := strings.Cut(told[1], " (discriminator")
			want, told = append(want, told[0]+" "+at[strings.LastIndexByte(at, '/')+1:]), told[2:]
		}
		if len(want) == 1 && strings.HasSuffix(want[0], ":?") || len(want) == 1 && strings.HasSuffix(want[0], ":0") {
			want = nil // no line is known
		}
		var got []string
		for _, f := range i.Frames(a) {
			got = append(got, fmt.Sprintf("%s %s:%d", f.Function, filepath.Base(f.File), f.Line))
		}
		inlined += max(0, len(got)-1)
		if len(got) == 1 && len(want) == 1 && got[0][0] == ' ' {
			want[0] = want[0][strings.IndexByte(want[0], ' '):] // the name is a symbol's
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			if bad++; bad < 20 {
				t.Logf("%#x: %q, want %q", a, got, want)
			}
		}
	}
	t.Logf("%d of %d differ; %d inlined", bad, len(addrs), inlined)
	if bad > len(addrs)/100 || inlined < len(addrs)/10 {
		t.Fail()
	}
}
