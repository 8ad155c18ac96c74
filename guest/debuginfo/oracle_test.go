package debuginfo

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest/builtin"
)

// subject returns a file with debug information, and a number of addresses in its code:
// the built-in guest, or what GUESTPROBE_DEBUG names, a kernel's vmlinux of many seconds.
// It is nil where that tool, the oracle, is not there.
func subject(t testing.TB, tool string, n int) (path string, i *Info, addrs []uint64) {
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

// BenchmarkQuestions measures what questions take of processor time and memory, at random
// places.
func BenchmarkQuestions(b *testing.B) {
	path, i, addrs := subject(b, "true", 1000)
	next := 0
	for _, x := range []struct {
		name string
		ask  func(addr uint64) error
	}{
		{"open", func(uint64) (err error) { i, err = Open(path, ""); return err }},
		{"frames", func(addr uint64) error { i.Frames(addr); return nil }},
		{"variables", func(addr uint64) error { _, err := i.Variables(addr, ""); return err }},
		{"line", func(uint64) error { _, _ = i.Places("fs/open.c", 1300); return nil }},
		{"inlined", func(uint64) error { _, err := i.InlinedCopies("kmalloc"); return err }},
	} {
		b.Run(x.name, func(b *testing.B) {
			from := processorTime(b)
			for b.Loop() {
				if err := x.ask(addrs[next%len(addrs)]); err != nil {
					b.Fatal(err)
				}
				next++
			}
			b.ReportMetric(float64((processorTime(b)-from).Microseconds())/1000/float64(b.N), "cpu-ms/op")
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "MB-heap")
		})
	}
}

// processorTime is that of this process.
func processorTime(t testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fileLine is the file's name and the line that a tool says; discriminators are no part of that.
func fileLine(at string) string {
	at, _, _ = strings.Cut(at, " (discriminator")
	return at[strings.LastIndexByte(at, '/')+1:]
}

// llvmFrames returns LLVM's frames of addresses: for code that is separate from its
// function binutils reports the line of one file with the name of another, and for
// Rust it reports the linker's names. It returns none if LLVM is not installed.
func llvmFrames(t *testing.T, path string, addrs []uint64) (all [][]string) {
	t.Helper()
	all = make([][]string, len(addrs))
	if _, err := exec.LookPath("llvm-symbolizer"); err != nil || len(addrs) == 0 {
		return all
	}
	var in bytes.Buffer
	for _, a := range addrs {
		fmt.Fprintf(&in, "%#x\n", a)
	}
	cmd := exec.Command("llvm-symbolizer", "-e", path, "--functions=short", "--no-demangle")
	cmd.Stdin = &in
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for n, block := range strings.Split(strings.TrimSuffix(string(out), "\n\n"), "\n\n") {
		lines := strings.Split(block, "\n")
		for k := 0; k+1 < len(lines); k += 2 {
			line := fileLine(lines[k+1])
			all[n] = append(all[n], strings.TrimSuffix(lines[k], ".cold")+" "+line[:strings.LastIndexByte(line, ':')]) // without the column
		}
	}
	return all
}

// TestFramesByAddr2line wants the frames of addresses that binutils tells, or else LLVM.
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
	var odd []uint64
	var ours, theirs []string
	inlined := 0
	for _, a := range addrs {
		var want []string
		told = told[1:] // the address
		for len(told) >= 2 && !strings.HasPrefix(told[0], "0x") {
			want, told = append(want, told[0]+" "+fileLine(told[1])), told[2:]
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
		if len(got) == 1 && len(want) == 0 && strings.HasSuffix(got[0], " .:0") {
			continue // a function without a line
		}
		if g, w := strings.Join(got, ", "), strings.Join(want, ", "); g != w {
			odd, ours, theirs = append(odd, a), append(ours, g), append(theirs, w)
		}
	}
	bad := 0
	for n, frames := range llvmFrames(t, path, odd) {
		third := strings.Join(frames, ", ")
		if ours[n][0] == ' ' && len(frames) == 1 {
			third = third[strings.IndexByte(third, ' '):]
		}
		if ours[n] != third {
			bad++
			t.Logf("%#x: %q, binutils %q, LLVM %q", odd[n], ours[n], theirs[n], third)
		}
	}
	t.Logf("%d of %d differ from binutils, %d of them from LLVM, too; %d inlined", len(odd), len(addrs), bad, inlined)
	if bad > len(addrs)/300 || inlined < len(addrs)/10 {
		t.Fail()
	}
}
