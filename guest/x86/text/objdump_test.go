package text

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// objdump calls f for each instruction that it finds in a file of ours, or returns false where there is no objdump of the
// version that the texts are of: others write some of them differently.
func objdump(t *testing.T, content []byte, f func(addr uint64, code []byte, text string), args ...string) bool {
	t.Helper()
	if v, err := exec.Command("objdump", "--version").Output(); err != nil || !strings.Contains(string(v), ") 2.40\n") {
		t.Logf("no objdump 2.40 here (Debian 12's package binutils): %q, %v", v, err)
		return false
	}
	name := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("objdump", append(args, "-w", "--insn-width=16", "-M", "att", name)...).Output()
	if err != nil {
		t.Fatalf("objdump: %v", err)
	}
	for l := range strings.Lines(string(out)) {
		c := strings.Split(strings.TrimSuffix(l, "\n"), "\t")
		if len(c) != 3 {
			continue
		}
		addr, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(c[0]), ":"), 16, 64)
		code, err2 := hex.DecodeString(strings.ReplaceAll(c[1], " ", ""))
		if err != nil || err2 != nil {
			t.Fatalf("objdump: line %q", l)
		}
		f(addr, code, c[2])
	}
	return true
}

// compareText compares the text of an instruction with objdump's. Known is false where we have none.
func compareText(addr uint64, code []byte, text string) (got string, known, differs bool) {
	i, err := x86.Decode(code)
	if err != nil || int(i.Len) != len(code) || strings.Contains(text, "bad)") {
		return "", false, false
	}
	if got = Format(&i, addr, nil); got == "" {
		return "", false, false
	}
	return got, true, normalize(&i, got) != normalize(&i, text)
}

// normalize is a text without what objdump and we write differently on purpose:
//
//   - targets: objdump has no 0x, pads, and has symbols;
//   - prefixes without an effect: x86asm does not tell of all, and they stand in another order; "fs", "gs" and "lock" with
//     one are part of operands, or the first word that is left;
//   - {vex}, which tells two encodings of the same instruction apart;
//   - addresses relative to EIP, which objdump does not cut to 32 bits;
//   - immediate operands of comparisons and of pclmulqdq that have names, and a suffix that says how long a vector is;
//   - 64-bit registers of which an instruction writes or reads the low half only.
func normalize(i *x86.Inst, text string) string {
	text, _, _ = strings.Cut(text, " <")
	f := strings.Fields(text)
	f = slices.DeleteFunc(f, func(s string) bool {
		switch s {
		case "data16", "addr32", "cs", "ds", "es", "ss", "fs", "gs", "{vex}", "rex":
			return true
		}
		return strings.HasPrefix(s, "rex.")
	})
	if len(f) == 0 {
		return ""
	}
	if n := slices.Index(f, "#"); n >= 0 {
		v, err := strconv.ParseUint(strings.TrimPrefix(f[n+1], "0x"), 16, 64)
		if err == nil && i.Has(x86.PrefixAddrSize) {
			f[n+1] = strconv.FormatUint(uint64(uint32(v)), 16)
		}
	}
	for n := range f {
		f[n] = strings.TrimPrefix(f[n], "0x")
	}
	switch name := f[0]; {
	case strings.HasPrefix(name, "vpclmul"), strings.HasPrefix(name, "pclmul"), strings.HasPrefix(name, "vcmp"):
		f = []string{name[:4], f[1][strings.LastIndexAny(f[1], "%$"):]}
	case strings.HasPrefix(name, "vcvtneps2bf16"):
		f[0] = "vcvtneps2bf16"
	case name == "lsl", name == "lar", name == "pmovmskb", name == "movmskps", name == "movmskpd":
		f[1] = strings.ReplaceAll(f[1], "%e", "%r")
	}
	return strings.Join(f, " ")
}

// TestObjdumpBuiltin compares all of the built-in guest's code.
func TestObjdumpBuiltin(t *testing.T) {
	all, unknown := 0, 0
	if !objdump(t, builtin.ELF(), func(addr uint64, code []byte, text string) {
		all++
		got, known, bad := compareText(addr, code, text)
		if !known {
			unknown++
			t.Logf("% x: not known, objdump says %q", code, text)
		}
		if bad {
			t.Errorf("%x: % x: got %q, objdump says %q", addr, code, got, text)
		}
	}, "-d") {
		return
	}
	t.Logf("%d instructions, %d not known", all, unknown)
	if all < 1000 || unknown > all/100 {
		t.Errorf("%d instructions, %d of them not known", all, unknown)
	}
}

// TestObjdumpCorpus compares the examples of each form that the decoder's tests have, and the same with random bytes in them.
func TestObjdumpCorpus(t *testing.T) {
	corpus, err := os.ReadFile("../../../guest/x86/testdata/corpus.tsv")
	if err != nil {
		t.Fatal(err)
	}
	const slot = 32
	var blob []byte
	r := rand.New(rand.NewPCG(1, 2))
	for l := range strings.Lines(string(corpus)) {
		c := strings.Split(l, "\t")
		if len(c) != 3 {
			continue
		}
		code, err := hex.DecodeString(c[1])
		if err != nil {
			t.Fatal(err)
		}
		for n := range 4 {
			s := bytes.Repeat([]byte{0x90}, slot)
			copy(s, code)
			if n > 0 {
				s[r.IntN(len(code))] = byte(r.Uint32())
				for k := len(code); k < x86.MaxLen; k++ {
					s[k] = byte(r.Uint32())
				}
			}
			blob = append(blob, s...)
		}
	}
	compared, unknown := 0, 0
	if !objdump(t, blob, func(addr uint64, code []byte, text string) {
		if addr%slot != 0 {
			return
		}
		got, known, bad := compareText(addr, code, text)
		switch {
		case !known:
			unknown++
		case bad:
			t.Errorf("% x: got %q, objdump says %q", code, got, text)
		default:
			compared++
		}
	}, "-D", "-b", "binary", "-m", "i386:x86-64", "--adjust-vma=0x7ffff0000000") {
		return
	}
	t.Logf("%d are the same, %d not known", compared, unknown)
	if compared < 15000 {
		t.Errorf("only %d compared", compared)
	}
}
