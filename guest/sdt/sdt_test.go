package sdt_test

import (
	"bytes"
	debugelf "debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/guest/sdt"
	"github.com/guestprobe/guestprobe/guest/x86"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// note returns a note.
func note(owner string, kind uint32, desc []byte) []byte {
	var b bytes.Buffer
	for _, v := range []uint32{uint32(len(owner)), uint32(len(desc)), kind} {
		_ = binary.Write(&b, binary.LittleEndian, v)
	}
	b.WriteString(owner)
	b.Write(make([]byte, -len(owner)&3))
	b.Write(desc)
	b.Write(make([]byte, -len(desc)&3))
	return b.Bytes()
}

func desc(pc, base, semaphore uint64, texts ...string) []byte {
	var b []byte
	for _, v := range []uint64{pc, base, semaphore} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, t := range texts {
		b = append(append(b, t...), 0)
	}
	return b
}

const owner = "stapsdt\x00"

// Addresses of the code, the base and the data in the file that build returns.
const (
	textAt = guest.GVA(0x401000)
	baseAt = guest.GVA(0x402000)
	dataAt = guest.GVA(0x403000)
)

func build(notes ...[]byte) []byte {
	f := elfbuild.File{
		Entry: textAt,
		Segments: []elfbuild.Segment{
			{Section: ".text", VAddr: textAt, Flags: debugelf.PF_R | debugelf.PF_X, Data: bytes.Repeat([]byte{0x90}, 64)},
			{Section: ".stapsdt.base", VAddr: baseAt, Flags: debugelf.PF_R, Data: []byte{0}},
			{Section: ".probes", VAddr: dataAt, Flags: debugelf.PF_R | debugelf.PF_W, Data: make([]byte, 8), MemSize: 64},
		},
		Extra: []elfbuild.Extra{{Name: ".note.stapsdt", Data: slices.Concat(notes...)}},
	}
	return f.Bytes()
}

func parse(t testing.TB, b []byte) *elf.File {
	t.Helper()
	f, err := elf.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRead(t *testing.T) {
	f := parse(t, build(
		note(owner, 3, desc(uint64(textAt)+4, uint64(baseAt), uint64(dataAt)+2, "app", "tick", "-4@%edi 8@8(%rax)")),
		note("GNU\x00", 3, []byte("abcd")),
		note(owner, 4, nil),
		note(owner, 3, desc(uint64(textAt)-0x1000+1, uint64(baseAt)-0x1000, uint64(dataAt)-0x1000+6, "app", "moved", "")), // prelinked by 0x1000
		note(owner, 3, desc(uint64(textAt)+64, uint64(baseAt), 0, "app", "outside", "")),
		note(owner, 3, desc(uint64(textAt)+1, uint64(baseAt), uint64(dataAt)+7, "bss", "half", "")),
		note(owner, 3, desc(uint64(textAt)+3, 0, 0, "app", "tick", "1@$1")),
	))
	got, err := sdt.Read(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, data := f.Progs[0].Off, f.Progs[2].Off
	want := []struct {
		name                    string
		addr, offset, semaphore uint64
		args                    int
		why                     string
	}{
		{"app:moved", 0x401001, text + 1, data + 6, 0, ""},
		{"app:outside", 0x401040, 0, 0, 0, "it is at 0x401040, where the file has no code"},
		{"app:tick", 0x401003, text + 3, 0, 1, ""},
		{"app:tick", 0x401004, text + 4, data + 2, 2, ""},
		{"bss:half", 0x401001, text + 1, 0, 0, "its semaphore is at 0x403007, where the file has nothing that can be written to"},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i, w := range want {
		g := got[i]
		if g.Provider+":"+g.Name != w.name || g.Addr != w.addr || g.Offset != w.offset || g.Semaphore != w.semaphore || len(g.Args) != w.args || g.Why != w.why {
			t.Errorf("%+v, want %+v", g, w)
		}
	}
	if _, err := sdt.Read(f, func(off, n uint64) bool { return false }); !errors.Is(err, sdt.ErrUnknown) {
		t.Error(err)
	}
}

func TestReadDamaged(t *testing.T) {
	whole := note(owner, 3, desc(uint64(textAt), 0, 0, "app", "x", ""))
	for _, c := range []struct {
		name  string
		notes []byte
		want  string
	}{
		{"none", nil, "it has no statically defined probes"},
		{"others alone", note("GNU\x00", 3, nil), "it has no statically defined probes"},
		{"cut off in the header", whole[:11], "a note is cut off"},
		{"cut off in the description", whole[:40], "is cut off"},
		{"too short", note(owner, 3, make([]byte, 23)), "a probe of 23 bytes is cut off"},
		{"a text without end", note(owner, 3, append(desc(uint64(textAt), 0, 0, "app", "x"), 'a')), "a text of a probe does not end"},
		{"a long name", note(owner, 3, desc(uint64(textAt), 0, 0, strings.Repeat("a", 256), "x", "")), "more than 255 bytes"},
		{"a colon in a name", note(owner, 3, desc(uint64(textAt), 0, 0, "a:b", "x", "")), "is no name of a probe"},
		{"no name", note(owner, 3, desc(uint64(textAt), 0, 0, "app", "", "")), "is no name of a probe"},
	} {
		if _, err := sdt.Read(parse(t, build(c.notes)), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestParseArgs(t *testing.T) {
	const none = sdt.None
	reg := func(size int, signed bool, r x86.Reg64, high bool) sdt.Arg {
		return sdt.Arg{Size: size, Signed: signed, Kind: sdt.Register, Reg: r, High: high, Base: none, Index: none}
	}
	constant := func(size int, signed bool, n int64) sdt.Arg {
		return sdt.Arg{Size: size, Signed: signed, Kind: sdt.Constant, Value: n, Base: none, Index: none}
	}
	memory := func(size int, signed bool, n int64, base, index x86.Reg64, scale uint8) sdt.Arg {
		return sdt.Arg{Size: size, Signed: signed, Kind: sdt.Memory, Value: n, Base: base, Index: index, Scale: scale}
	}
	why := func(why string) sdt.Arg { return sdt.Arg{Why: why} }
	for text, want := range map[string]sdt.Arg{
		"8@%rax": reg(8, false, x86.RAX, false), "-8@%rdi": reg(8, true, x86.RDI, false), "4@%esi": reg(4, false, x86.RSI, false),
		"-2@%bp": reg(2, true, x86.RBP, false), "1@%dil": reg(1, false, x86.RDI, false), "1@%ah": reg(1, false, x86.RAX, true), "-1@%dl": reg(1, true, x86.RDX, false),
		"4@%r8d": reg(4, false, x86.R8, false), "2@%r15w": reg(2, false, x86.R15, false), "1@%r9b": reg(1, false, x86.R9, false), "8@%r10": reg(8, false, x86.R10, false),
		"-4@%rsp": reg(4, true, x86.RSP, false), "1@%spl": reg(1, false, x86.RSP, false),
		"-4@$-9": constant(4, true, -9), "8@$18446744073709551615": constant(8, false, -1), "1@$0x10": constant(1, false, 16), "4@$8+2": constant(4, false, 10),
		"8@(%rax)": memory(8, false, 0, x86.RAX, none, 0), "-4@-1204(%rbp)": memory(4, true, -1204, x86.RBP, none, 0),
		"8@16(%rsp,%r12,8)": memory(8, false, 16, x86.RSP, x86.R12, 3), "2@(%rax,%rdx)": memory(2, false, 0, x86.RAX, x86.RDX, 0),
		"1@-0x10(,%rcx,4)": memory(1, false, -16, none, x86.RCX, 2), "8@8-16(%rdx)": memory(8, false, -8, x86.RDX, none, 0),

		"8f@%xmm0": why("it is a floating-point number"), "-4@g(%rip)": why("its address is given by the name of a symbol"), "4@8(%rip)": why("its address is relative to an instruction"),
		"8@sym": why("its address is given by the name of a symbol"), "8@$sym": why("its address is given by the name of a symbol"), "4@1234": why("it is at an address that does not move with the program"),
		"8@%fs:-8": why("it is in memory of a thread's own (TLS)"), "%rax": why("its size is not known (N@ is missing)"), "16@%rax": why(`its size "16" is not 1, 2, 4 or 8 bytes`),
		"8@%eax": why("%eax does not have its 8 bytes"), "8@%xmm1": why("%xmm1 is no general register"), "8@%zz": why("%zz is no general register"),
		"8@(%eax)": why("%eax is no register of an address of 64 bits"), "8@(%rax,%rsp)": why("%rsp is no register of an address of 64 bits"),
		"8@(%rax,%rbx,3)": why(`its scale "3" is not 1, 2, 4 or 8`), "8@(%rax": why("its address is not understood"), "8@()": why("its address is not understood"),
		"8@(%rax,)": why("its address is not understood"), "8@(%rax,%rbx,1,2)": why("its address is not understood"), "@": why(`its size "" is not 1, 2, 4 or 8 bytes`),
	} {
		all := sdt.ParseArgs(" " + text + "\t")
		if len(all) != 1 {
			t.Errorf("%q: %+v", text, all)
			continue
		}
		got := all[0]
		if got.Text != text {
			t.Errorf("%q: text %q", text, got.Text)
		}
		if got.Text = ""; want.Why != "" {
			got = sdt.Arg{Why: got.Why}
		}
		if got != want {
			t.Errorf("%q:\n%+v, want\n%+v", text, got, want)
		}
	}
	if n := len(sdt.ParseArgs("")); n != 0 {
		t.Errorf("%d arguments of none", n)
	}
}

// program is a C program with the probes of <sys/sdt.h>. The compiler chooses arguments of each size and kind.
const program = `
#define PROBE(name, sem, text, ...) __asm__ __volatile__("990: nop\n.pushsection .note.stapsdt,\"?\",\"note\"\n.balign 4\n.4byte 992f-991f,994f-993f,3\n" \
	"991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte " sem "\n.asciz \"app\"\n.asciz \"" name "\"\n.asciz \"" text "\"\n994: .balign 4\n.popsection\n" \
	".ifndef _.stapsdt.base\n.pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n.weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n.size _.stapsdt.base,1\n.popsection\n.endif\n" :: __VA_ARGS__)
unsigned short tick __attribute__((section(".probes"), used));
long far[100];
__attribute__((noinline)) long work(long a, int b, short c, signed char d, unsigned char e, long *p, long i, int *q) {
	PROBE("sizes", "tick", "-8@%0 -4@%1 -2@%2 -1@%3 1@%4", "nor"(a), "nor"(b), "nor"(c), "nor"(d), "nor"(e));
	PROBE("memory", "0", "-8@%0 -4@%1 -4@%2", "m"(p[i+2]), "m"(q[-5]), "nor"(-9));
	PROBE("symbol", "0", "-8@%0 8@%1", "m"(far[3]), "nor"(far[i]));
	PROBE("none", "tick", "");
	return a + i;
}
int main(int c, char **v) { long x[9] = {c}; int y[9] = {c}; work(c, c, c, c, c, x, c, y + 8); return 0; }
`

// TestReadelf compares Read's results with readelf's, for programs of a compiler and for the files in GUESTPROBE_USDT, separated
// by colons.
func TestReadelf(t *testing.T) {
	readelf, gcc := kvmtest.RequireCommand(t, "readelf"), kvmtest.RequireCommand(t, "gcc")
	files := filepath.SplitList(os.Getenv("GUESTPROBE_USDT"))
	dir := t.TempDir()
	source := filepath.Join(dir, "app.c")
	if err := os.WriteFile(source, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{"-O0", "-O2"} {
		out := filepath.Join(dir, "app"+option)
		if text, err := exec.Command(gcc, option, "-o", out, source).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		files = append(files, out)
	}
	said := regexp.MustCompile(`Provider: (.*)\n +Name: (.*)\n +Location: (\S+), Base: \S+, Semaphore: (\S+)\n +Arguments: (.*)`)
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := exec.Command(readelf, "-nW", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		got, err := sdt.Read(parse(t, b), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := said.FindAllStringSubmatch(string(text), -1)
		if len(want) != len(got) {
			t.Fatalf("%s: %d probes, and %d of readelf's", name, len(got), len(want))
		}
		unread := 0
		for _, p := range got {
			var texts []string
			for _, a := range p.Args {
				texts = append(texts, a.Text)
				if a.Why != "" {
					unread++
					t.Logf("%s: %s:%s: %s: %s", name, p.Provider, p.Name, a.Text, a.Why)
				}
			}
			if !slices.ContainsFunc(want, func(w []string) bool {
				at, _ := strconv.ParseUint(w[3], 0, 64)
				sem, _ := strconv.ParseUint(w[4], 0, 64)
				return w[1] == p.Provider && w[2] == p.Name && at == p.Addr && (sem != 0) == (p.Semaphore != 0) && strings.Join(strings.Fields(w[5]), " ") == strings.Join(texts, " ")
			}) {
				t.Errorf("%s: %+v is not what readelf says", name, p)
			}
			if p.Why != "" {
				t.Errorf("%s: %s:%s: %s", name, p.Provider, p.Name, p.Why)
			}
		}
		t.Logf("%s: %d probes, %d arguments that cannot be read", name, len(got), unread)
	}
}

// FuzzRead: for any notes, Read returns an error or probes whose places are in the file.
func FuzzRead(f *testing.F) {
	f.Add(note(owner, 3, desc(uint64(textAt)+4, uint64(baseAt), uint64(dataAt)+2, "app", "tick", "-4@%edi 8@8(%rax,%rbx,2)")))
	f.Add(note(owner, 3, desc(0, 1, ^uint64(0), "app", "x", "8@$1+1+1")))
	f.Fuzz(func(t *testing.T, notes []byte) {
		file := parse(t, build(notes))
		all, err := sdt.Read(file, nil)
		if err != nil {
			return
		}
		for _, p := range all {
			if p.Why == "" && (p.Offset >= uint64(file.Size()) || p.Semaphore+sdt.SemaphoreSize > uint64(file.Size())) {
				t.Errorf("%+v is not in the file", p)
			}
			for _, a := range p.Args {
				if a.Why == "" && (a.Kind == sdt.Register && a.Reg > x86.R15 || a.Scale > 3 || a.Size != 1 && a.Size != 2 && a.Size != 4 && a.Size != 8) {
					t.Errorf("%+v", a)
				}
			}
		}
	})
}
