package x86

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// line is one instruction as objdump prints it.
type line struct {
	addr  uint64
	bytes []byte
	text  string
}

// stray reports whether objdump shows a REX prefix that has no effect, because
// another prefix follows, as a line of its own (possibly after other prefixes). To
// the CPU it is part of the instruction.
func (l *line) stray() bool {
	last := l.text[strings.LastIndexByte(l.text, ' ')+1:]
	return last == "rex" || strings.HasPrefix(last, "rex.")
}

// bad reports whether objdump found no instruction here, or one with an
// impossible operand: "{bad}", or "{ba" where that runs into other text.
func (l *line) bad() bool {
	return strings.Contains(l.text, "(bad)") || strings.Contains(l.text, "{ba") || strings.HasPrefix(l.text, ".byte")
}

// objdump runs the disassembler and calls f for each instruction. f must not
// keep l.bytes.
func objdump(t testing.TB, f func(l *line), args ...string) {
	t.Helper()
	args = append([]string{"-w", "--insn-width=16", "-M", "intel"}, args...)
	cmd := exec.Command("objdump", args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("objdump (package binutils) is needed here: %v", err)
	}
	err = scanObjdump(out, f)
	if werr := cmd.Wait(); err == nil {
		err = werr
	}
	if err != nil {
		t.Fatalf("objdump %v: %v\n%s", args, err, stderr.Bytes())
	}
}

// scanObjdump parses lines of the form "  addr:\tbytes\ttext".
func scanObjdump(r io.Reader, f func(l *line)) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 1<<20), 1<<20)
	var l line
	buf := make([]byte, 0, 16)
	for sc.Scan() {
		s := sc.Text()
		c := strings.IndexByte(s, ':')
		if c < 0 || c+1 >= len(s) || s[c+1] != '\t' {
			continue
		}
		addr, err := strconv.ParseUint(strings.TrimSpace(s[:c]), 16, 64)
		if err != nil {
			continue
		}
		raw, text, ok := strings.Cut(s[c+2:], "\t")
		if !ok {
			text = ""
		}
		buf = buf[:0]
		for _, x := range strings.Fields(raw) {
			v, err := strconv.ParseUint(x, 16, 8)
			if err != nil {
				return fmt.Errorf("line %q: %w", s, err)
			}
			buf = append(buf, byte(v))
		}
		l = line{addr, buf, strings.TrimSpace(text)}
		f(&l)
	}
	return sc.Err()
}

// disassembleSlots writes codes one after another, each in its own 32 bytes
// filled up with nops, and calls f with objdump's view of the first
// instruction of each.
func disassembleSlots(t testing.TB, codes [][]byte, f func(k int, l *line)) {
	t.Helper()
	const slot = 32
	blob := bytes.Repeat([]byte{0x90}, slot*len(codes))
	for k, c := range codes {
		copy(blob[k*slot:], c)
	}
	name := filepath.Join(t.TempDir(), "blob")
	if err := os.WriteFile(name, blob, 0o600); err != nil {
		t.Fatal(err)
	}
	objdump(t, func(l *line) {
		if l.addr%slot == 0 {
			f(int(l.addr/slot), l)
		}
	}, "-D", "-b", "binary", "-m", "i386:x86-64", name)
}
