package x86

import (
	"cmp"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// full reports whether the full corpus was asked for: see
// scripts/insn-corpus.sh.
func full() bool { return os.Getenv("GUESTPROBE_INSN_CORPUS") == "full" }

// update reports whether a full run shall add new forms to the committed
// corpus.
func update() bool { return os.Getenv("GUESTPROBE_INSN_UPDATE") != "" }

// TestCorpus holds Decode against objdump: on the committed examples, and in a
// full run on every instruction of the binaries that scripts/insn-corpus.sh
// has listed.
func TestCorpus(t *testing.T) {
	t.Run("committed", testCommitted)
	if full() {
		t.Run("binaries", testBinaries)
	}
}

// testCommitted decodes each example alone, followed by other bytes, and truncated at
// every length.
func testCommitted(t *testing.T) {
	n := 0
	readCorpus(t, func(l *line) {
		n++
		for _, tail := range []byte{0x00, 0x0f, 0x90, 0xff} {
			b := append(slices.Clone(l.bytes), tail, tail, tail, tail, tail, tail, tail, tail)
			if d, _ := compare(b, l); d != "" {
				t.Errorf("% x (%s): got %s", l.bytes, l.text, d)
				return
			}
		}
		d, exception := compare(l.bytes, l)
		if d != "" {
			t.Errorf("% x (%s), nothing behind it: got %s", l.bytes, l.text, d)
		}
		for k := range l.bytes {
			if exception == "fwait" {
				break
			}
			if _, err := Decode(l.bytes[:k]); err != ErrTruncated {
				t.Errorf("% x (%s): first %d bytes: got error %v, want %v", l.bytes, l.text, k, err, ErrTruncated)
			}
		}
		p := Analyze(l.bytes, l.addr, Options{})
		if p.Kind == Refuse && p.Reason == ReasonUndecodable {
			t.Errorf("% x (%s): got undecodable", l.bytes, l.text)
		}
	})
	if n < 5000 {
		t.Errorf("only %d examples in %s", n, corpusFile)
	}
}

// fullMinimum is how many instructions a full run must have compared.
const fullMinimum = 10_000_000

// tally counts what a comparison saw.
type tally struct {
	compared, wrong int
	except          map[string]int // by name, see compare; "(bad)" and "stray rex" are not compared
	forms           map[form]line
}

// add compares one instruction; b begins with it.
func (c *tally) add(t *testing.T, name string, b []byte, l *line) {
	switch {
	case l.bad():
		c.except["(bad)"]++
		return
	case l.stray():
		c.except["stray rex"]++
		return
	}
	c.compared++
	d, exception := compare(b, l)
	if exception != "" {
		c.except[exception]++
	}
	if d != "" {
		if c.wrong++; c.wrong < 50 {
			t.Errorf("%s: %x: % x (%s): got %s", name, l.addr, l.bytes, l.text, d)
		}
		return
	}
	p := Analyze(b, l.addr, Options{})
	f := formOf(&p.Inst)
	if _, ok := c.forms[f]; !ok && c.forms != nil {
		c.forms[f] = line{l.addr, slices.Clone(l.bytes), plainText(l.text)}
	}
}

// plainText takes symbol names and superfluous blanks out of objdump's text.
func plainText(s string) string {
	s, comment, ok := strings.Cut(s, " # ")
	if ok {
		comment, _, _ = strings.Cut(comment, " <")
		comment = " # " + comment
	}
	s, _, _ = strings.Cut(s, " <")
	return strings.Join(strings.Fields(s+comment), " ")
}

func testBinaries(t *testing.T) {
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, ".cache")
	}
	list, err := os.ReadFile(filepath.Join(cache, "guestprobe", "insn", "files"))
	if err != nil {
		t.Fatalf("run scripts/insn-corpus.sh: %v", err)
	}
	total := tally{forms: make(map[form]line)}
	for _, name := range strings.Fields(string(list)) {
		c := tally{forms: total.forms, except: make(map[string]int)}
		compareFile(t, name, &c)
		t.Logf("%8d compared, %d differ, exceptions %v: %s", c.compared, c.wrong, c.except, name)
		total.compared += c.compared
		total.wrong += c.wrong
	}
	c := total
	t.Logf("%8d compared, of %d forms, %d differ", c.compared, len(c.forms), c.wrong)
	if c.compared < fullMinimum {
		t.Errorf("compared %d instructions, want at least %d", c.compared, fullMinimum)
	}
	if update() {
		writeCorpus(t, c.forms)
	}
}

// compareFile compares all executable sections of an ELF file.
func compareFile(t *testing.T, name string, c *tally) {
	f, err := elf.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type section struct {
		addr uint64
		data []byte
	}
	var text []section
	for _, s := range f.Sections {
		if s.Flags&elf.SHF_EXECINSTR == 0 || s.Type != elf.SHT_PROGBITS {
			continue
		}
		data, err := s.Data()
		if err != nil {
			t.Fatalf("%s: section %s: %v", name, s.Name, err)
		}
		text = append(text, section{s.Addr, data})
	}
	objdump(t, func(l *line) {
		for _, s := range text {
			if l.addr >= s.addr && l.addr-s.addr < uint64(len(s.data)) {
				c.add(t, name, s.data[l.addr-s.addr:], l)
				return
			}
		}
		t.Errorf("%s: objdump shows %x, which is in no section", name, l.addr)
	}, "-d", name)
}

// writeCorpus adds forms to the committed corpus.
func writeCorpus(t *testing.T, forms map[form]line) {
	readCorpus(t, func(l *line) {
		if i, err := Decode(l.bytes); err == nil {
			forms[formOf(&i)] = *l
		}
	})
	keys := make([]form, 0, len(forms))
	for k := range forms {
		keys = append(keys, k)
	}
	order := func(f form) string {
		return fmt.Sprintf("%02d %03d %03d %03d %05d %d %d %v %v", f.enc, f.m, f.op, f.sel, f.prefix, f.pp, f.vl, f.b, f.memory)
	}
	slices.SortFunc(keys, func(a, b form) int { return cmp.Compare(order(a), order(b)) })
	var out strings.Builder
	out.WriteString("# One example of each form of instruction in the full corpus: address, bytes, text.\n" +
		"# Written by GUESTPROBE_INSN_UPDATE=1 scripts/insn-corpus.sh; lengths and text are objdump's (binutils 2.40).\n")
	for _, k := range keys {
		l := forms[k]
		fmt.Fprintf(&out, "%x\t%x\t%s\n", l.addr, l.bytes, l.text)
	}
	if err := os.WriteFile(corpusFile, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
