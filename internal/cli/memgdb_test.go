package cli

import (
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// asGDB are symbols and types of testdata/values.c in the syntax of mem --as, and in GDB's.
var asGDB = [][3]string{
	{"f", "float", "f"}, {"fs", "float[2]", "fs"}, {"fs+4", "float", "fs[1]"}, {"d", "double", "d"}, {"ds", "double[4]", "ds"},
	{"ld", "long double", "ld"}, {"ld", "double long", "ld"}, {"lds", "long double[2]", "lds"}, {"wide", "__int128", "wide"}, {"uwide", "unsigned __int128", "uwide"},
	{"l", "long", "l"}, {"l", "int long", "l"}, {"l", "long unsigned int", "(unsigned long)l"}, {"l", "unsigned long", "(unsigned long)l"}, {"l", "long long unsigned int", "(unsigned long long)l"},
	{"ui", "unsigned", "ui"}, {"ui", "int", "(int)ui"}, {"ui", "const unsigned int", "ui"}, {"sc", "signed char", "(int)sc"}, {"sc", "unsigned char", "(int)(unsigned char)sc"}, {"byte", "u8", "(int)byte"}, {"sh", "short int", "sh"},
	{"sh", "unsigned short", "(unsigned short)sh"}, {"l", "u64", "(u64)l"}, {"l", "u8[3]", "{(int)((u8 *)&l)[0], (int)((u8 *)&l)[1], (int)((u8 *)&l)[2]}"},
	{"first", "struct node.next", "first.next"}, {"first", "struct node *", "*(struct node **)&first"}, {"first", "struct node **", "*(struct node ***)&first"}, {"nodes", "struct node *[3]", "nodes"},
	{"first", "struct node.in[0].d", "first.in[0].d"}, {"first", "struct node.in[0].f", "first.in[0].f"}, {"first", "struct node.in[1].f[2]", "first.in[1].f[2]"}, {"first", "struct node.in[1].s", "first.in[1].s"}, {"first", "struct node.in[1].d", "first.in[1].d"},
	{"first", "struct inner", "*(struct inner *)&first"}, {"first", "struct node.in", "first.in"}, {"first", "struct node.either.f", "first.either.f"},
	{"first", "struct node.colour", "first.colour"}, {"second", "struct node.colour", "second.colour"}, {"ui", "enum colour", "(enum colour)ui"}, {"first", "struct node.yes", "first.yes"}, {"first", "struct node.name", "first.name"}, {"first", "struct node.name[4]", "(int)first.name[4]"},
	{"first", "struct node.low", "first.low"}, {"first", "struct node.mid", "first.mid"}, {"first", "struct node.high", "first.high"}, {"first", "struct node.neg", "first.neg"}, {"first", "struct node.ld", "first.ld"}, {"first", "struct node.wide", "first.wide"},
	{"first", "struct node.wides", "first.wides"}, {"first", "struct node.wides[1]", "first.wides[1]"}, {"first", "struct node.call", "(void *)first.call"}, {"first", "struct node.text[1]", "(int)first.text[1]"}, {"first", "struct node.grid", "first.grid"}, {"first", "struct node.grid[1]", "first.grid[1]"},
	{"first", "struct node.grid[1][2]", "first.grid[1][2]"}, {"first", "struct node.hidden", "first.hidden"}, {"first", "struct node.either_long", "first.either_long"}, {"first", "struct node.raw[7]", "(int)first.raw[7]"}, {"first", "struct node.list", "first.list"},
	{"first", "struct node.list[1]", "first.list[1]"}, {"first", "struct node.list[1]->name", "first.list[1]->name"}, {"first", "struct node.next->next->next->in[0].f", "first.next->next->next->in[0].f"}, {"first", "struct node.next->ld", "first.next->ld"},
	{"nodes+8", "struct node *->wide", "nodes[1]->wide"}, {"first", "struct node.next.in[0].d", "first.next->in[0].d"}, {"second", "struct node.in[0].f", "second.in[0].f"}, {"ds", "double[2][2]", "*(double(*)[2][2])&ds"},
}

// TestMemAsGDB compares mem --as with GDB for the memory of a guest compiled by gcc. It compares numbers by
// value, because GDB does not print the shortest form.
func TestMemAsGDB(t *testing.T) {
	gdb, gcc := kvmtest.RequireCommand(t, "gdb"), kvmtest.RequireCommand(t, "gcc")
	kvmtest.Require(t)
	ctx := patience.Context(t)
	dir := shortDir(t)
	socket, image := filepath.Join(dir, "s"), filepath.Join(dir, "values")
	if out, err := exec.CommandContext(ctx, gcc, "-g", "-O1", "-w", "-ffreestanding", "-fno-stack-protector", "-fno-pic", "-no-pie", "-mcmodel=kernel", "-mno-red-zone", "-fcf-protection=none", "-nostdlib", "-static",
		"-T", "../../scripts/gdb-testsuite/guest.lds", "-o", image, "testdata/values.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	d := daemonAt(ctx, t, socket, "--paused", "--log-level", "warn", "--guest", image)
	args := []string{"--nx", "--batch", "-ex", "set print null-stop on", "-ex", "set print elements unlimited", "-ex", "set print repeats unlimited"}
	for _, x := range asGDB {
		args = append(args, "-ex", "output "+x[2], "-ex", `echo \n`)
	}
	cmd := exec.CommandContext(ctx, gdb, append(args, image)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	c := remote.New(socket)
	told := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(told) != len(asGDB) {
		t.Fatalf("GDB says %d values of %d:\n%s", len(told), len(asGDB), out)
	}
	for i, x := range asGDB {
		m, err := c.Memory(ctx, remote.Where{At: x[0]}, remote.MemoryQuery{Type: x[1]})
		got := m.Text
		if err != nil {
			t.Errorf("%s as %s: %v", x[0], x[1], err)
		} else if g, w := splitWords(got), splitWords(told[i]); !sameWords(g, w) {
			t.Errorf("%s as %s is %q (%q), GDB says of %s %q (%q)", x[0], x[1], got, g, x[2], told[i], w)
		}
	}
	if m, err := c.Memory(ctx, remote.Where{At: "nodes"}, remote.MemoryQuery{Type: "struct node *[3]"}); err != nil || !slices.Equal(m.Symbols, []api.Pointer{{Offset: 8, Symbol: "second"}}) {
		t.Errorf("nodes have %+v, %v", m, err)
	}
	// GDB has its own format for complex numbers.
	if m, err := c.Memory(ctx, remote.Where{At: "pair"}, remote.MemoryQuery{Type: "struct pair"}); err != nil || m.Text != "{\n  .both = [1.5,-2.25]\n  .small = [0.1,30000000000]\n}" || string(m.Value) != `{"both":[1.5,-2.25],"small":[0.1,30000000000]}` {
		t.Errorf("pair is %s, %s, %v", m.Text, m.Value, err)
	}
	if err := d.End(ctx, os.Interrupt); err != nil {
		t.Errorf("the daemon: %v", err)
	}
}

// word is a part of a value: a text, a symbol, a number or a name.
var word = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|<[^>]*>|-?nan\(0x\w+\)|[-+.\w]+`)

// splitWords returns the parts of a value without the names of members and types.
func splitWords(text string) (words []string) {
	text = regexp.MustCompile(`\([a-z ]+ \*+\) |\.?\w+ = `).ReplaceAllString(text, "")
	return word.FindAllString(text, -1)
}

// sameWords compares our output with GDB's. GDB prints enough digits to distinguish a number from all others of its
// format, and so does the shortest form.
func sameWords(ours, gdbs []string) bool {
	return slices.EqualFunc(ours, gdbs, func(a, b string) bool {
		if a == b {
			return true
		}
		digits := len(strings.Trim(strings.ReplaceAll(strings.Split(b, "e")[0], ".", ""), "-0"))
		if digits <= 17 {
			size := 64
			if digits <= 9 {
				size = 32
			}
			x, err := strconv.ParseFloat(a, size)
			y, bad := strconv.ParseFloat(b, size)
			return err == nil && bad == nil && x == y
		}
		x, ok := new(big.Rat).SetString(a)
		y, too := new(big.Rat).SetString(b)
		long := func(v *big.Rat) *big.Float { return new(big.Float).SetPrec(64).SetRat(v) }
		return ok && too && strings.ContainsAny(a, ".e") && long(x).Cmp(long(y)) == 0
	})
}
