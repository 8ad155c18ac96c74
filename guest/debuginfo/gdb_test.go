package debuginfo

import (
	"debug/elf"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

var (
	gdbSymbol = regexp.MustCompile(`^Symbol (\S+) is (.*)$`)
	gdbRange  = regexp.MustCompile(`^ *(?:Base address 0x[0-9a-f]+ +)?Range 0x([0-9a-f]+)-0x([0-9a-f]+): (.*)$`)
	gdbLength = regexp.MustCompile(`, length (\d+)\.$`)
	gdbOp     = regexp.MustCompile(`^\s+\d+: DW_OP_(\w+)(?: (-?\d+))?(?: \[\$(\w+)\])?`)
)

// gdbRegisters are gdb's names of registers by their numbers.
var gdbRegisters = strings.Fields("rax rdx rcx rbx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15")

// told is what gdb says of a variable at one address.
type told struct {
	what   string   // as "a variable in $rdi"
	ops    []string // of an expression: operation, number, register
	length uint64
}

// gaveUp is the result for a variable when gdb itself failed.
const gaveUp = "gave up"

// scopes asks gdb for the variables of the innermost function at each address.
func scopes(t *testing.T, path string, addrs []uint64) map[uint64]map[string]told {
	t.Helper()
	args := []string{"-nx", "-batch"}
	for _, a := range addrs {
		args = append(args, "-ex", fmt.Sprintf("info scope *%#x", a))
	}
	out, err := exec.Command("gdb", append(args, path)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%.1000s", err, out)
	}
	all := map[uint64]map[string]told{}
	var addr uint64
	var name string
	var now told
	in := true // the following output is about the address
	put := func() {
		if _, had := all[addr][name]; name != "" && !had {
			all[addr][name] = now
		}
		name, now = "", told{}
	}
	for _, l := range strings.Split(string(out), "\n") {
		if at, ok := strings.CutPrefix(l, "Scope for *"); ok {
			put()
			at, _, _ = strings.Cut(at, " ") // "contains no locals"
			if addr, err = strconv.ParseUint(strings.TrimSuffix(at, ":"), 0, 64); err != nil {
				t.Fatal(err)
			}
			all[addr] = map[string]told{}
		}
		if m := gdbSymbol.FindStringSubmatch(l); m != nil {
			put()
			name, now.what, in = m[1], m[2], true
			if strings.HasPrefix(m[2], "multi-location") {
				now.what, in = "optimized out", false
			}
		}
		if m := gdbRange.FindStringSubmatch(l); m != nil {
			lo, _ := strconv.ParseUint(m[1], 16, 64)
			hi, _ := strconv.ParseUint(m[2], 16, 64)
			if in = lo <= addr && addr < hi && now.what == "optimized out"; in {
				now.what = m[3]
			}
		}
		if m := gdbOp.FindStringSubmatch(l); m != nil && in {
			now.ops = append(now.ops, strings.TrimRight(strings.Join(m[1:], " "), " "))
		}
		if strings.Contains(l, "No function found for block") {
			now.what, now.ops = gaveUp, nil // in code that is separate from its function
		}
		if m := gdbLength.FindStringSubmatch(l); m != nil {
			now.length, _ = strconv.ParseUint(m[1], 10, 64)
		}
	}
	put()
	return all
}

// gdbText says in gdb's words what a Variable is, as far as there are any for it.
func gdbText(v Variable) string {
	l := v.Where
	reg := ""
	if l.Base == BaseRegister {
		reg = gdbRegisters[l.Reg]
	}
	switch {
	case errors.Is(v.Why, errOptimizedOut):
		return "optimized out"
	case v.Why != nil:
		return v.Why.Error() // of another file: gdb says where
	case len(l.Offsets) > 1:
		return "through memory"
	case l.Base == BaseRegister && !l.Memory && l.Offsets[0] == 0:
		return "in " + reg
	case l.Base == BaseRegister && !l.Memory:
		return fmt.Sprintf("%s%+d", reg, l.Offsets[0])
	case l.Base == BaseRegister:
		return fmt.Sprintf("at %s%+d", reg, l.Offsets[0])
	case l.Base == BaseCFA && l.Memory:
		return fmt.Sprintf("at CFA%+d", l.Offsets[0])
	case l.Base == BaseCFA:
		return fmt.Sprintf("CFA%+d", l.Offsets[0])
	case l.Base == BaseProgram && l.Memory:
		return fmt.Sprintf("at %#x", uint64(l.Offsets[0]))
	case l.Base == BaseProgram:
		return fmt.Sprintf("%#x", uint64(l.Offsets[0]))
	}
	return fmt.Sprint(l.Offsets[0])
}

// meaning says the same of what gdb tells; "" where that has no plain meaning.
func (g told) meaning() string {
	what := strings.TrimSuffix(gdbLength.ReplaceAllString(g.what, ""), ".")
	joined := strings.Join(g.ops, ";")
	op := func(n int) []string { return append(strings.Fields(g.ops[n]), "", "") }
	value := len(g.ops) == 2 && g.ops[1] == "stack_value"
	switch {
	case what == gaveUp:
		return ""
	case strings.Contains(what, "Corrupted DWARF2 expression"):
		return errDamaged.Error()
	case strings.Contains(what, "piece"):
		return errPieces.Error()
	case strings.HasPrefix(what, "a variable in $xmm"), strings.HasPrefix(what, "constant bytes"):
		return ""
	case strings.HasPrefix(what, "a variable in $"):
		return "in " + strings.TrimPrefix(what, "a variable in $")
	case strings.Contains(what, "optimized out"):
		return "optimized out"
	case strings.HasPrefix(what, "the constant "):
		return strings.TrimPrefix(what, "the constant ")
	case strings.HasPrefix(what, "constant "):
		return strings.TrimPrefix(what, "constant ")
	case strings.Contains(what, "static storage at address "):
		if at := what[strings.Index(what, "0x"):]; at != "0x0" { // what the linker has dropped
			return "at " + at
		}
		return "optimized out"
	case strings.Contains(joined, "entry_value"):
		return ErrEntryValue.Error()
	case strings.Contains(joined, "piece"):
		return errPieces.Error()
	case strings.Contains(joined, "implicit_pointer"):
		return errImplicit.Error()
	case len(g.ops) == 0:
		return ""
	case value && strings.HasPrefix(g.ops[0], "const"):
		return op(0)[1]
	case strings.HasPrefix(g.ops[0], "fbreg") && (len(g.ops) == 1 || value):
		n, _ := strconv.Atoi(op(0)[1])
		if value {
			return fmt.Sprintf("CFA%+d", n)
		}
		return fmt.Sprintf("at CFA%+d", n)
	case strings.HasPrefix(g.ops[0], "breg") && (len(g.ops) == 1 || value):
		f := op(0)
		n, _ := strconv.Atoi(f[1])
		switch {
		case value && n == 0:
			return "in " + f[2]
		case value:
			return fmt.Sprintf("%s%+d", f[2], n)
		}
		return fmt.Sprintf("at %s%+d", f[2], n)
	}
	return ""
}

// symbols returns the addresses of a file's symbols, in gdb's words.
func symbols(t *testing.T, path string) map[string][]string {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	at := map[string][]string{}
	for _, s := range all {
		at[s.Name] = append(at[s.Name], fmt.Sprintf("%#x", s.Value))
	}
	return at
}

// TestVariablesByGDB wants of the variables at addresses what gdb tells of them: which
// there are, where they are, and how large.
func TestVariablesByGDB(t *testing.T) {
	path, i, addrs := subject(t, "gdb", 1500)
	if path != "" && !variablesByGDB(t, path, i, addrs) {
		t.Fail()
	}
}

// variablesByGDB reports whether the variables at addresses are nearly all what gdb says of them.
func variablesByGDB(t *testing.T, path string, i *Info, addrs []uint64) bool {
	t.Helper()
	at := symbols(t, path)
	bad, vague, checked, sized := 0, 0, 0, 0
	kinds := map[string]int{}
	for addrs := range slices.Chunk(addrs, 250) {
		for addr, all := range scopes(t, path, addrs) {
			have, err := i.Variables(addr, "")
			if len(all) > 0 && err != nil {
				t.Errorf("%#x: %v", addr, err)
			}
			frames := i.Frames(addr)
			if len(frames) == 0 || frames[0].Function == "" {
				continue // between functions
			}
			inner := frames[0].Function
			for name, g := range all {
				n := slices.IndexFunc(have, func(v Variable) bool { return v.Name == name && v.Function == inner })
				if n < 0 && slices.ContainsFunc(have, func(v Variable) bool { return v.Name == name }) {
					continue // addr is where the innermost function begins: those around it come first
				}
				if n < 0 {
					if !strings.Contains(g.what, "function at") && !strings.Contains(g.what, "a label at") && !strings.HasPrefix(g.what, "optimized out") && !strings.Contains(g.what, "a typedef") && !strings.Contains(g.what, "a constant with value") {
						bad++
						t.Logf("%#x: %s (%s) of %s is missing", addr, name, g.what, inner)
					}
					continue
				}
				want, got := g.meaning(), gdbText(have[n])
				if errors.Is(have[n].Why, ErrElsewhere) && strings.HasPrefix(want, "at ") && slices.Contains(at[name], want[3:]) {
					got = want // a symbol has its name, by which gdb finds it, and a caller can do the same
				}
				checked++
				kinds[strings.Fields(got + " ?")[0]]++
				switch {
				case want == "" || have[n].Why != nil && strings.HasPrefix(got, "computed"):
					vague++
					if want != "" || !strings.HasPrefix(got, "computed") && got != "through memory" && vague < 10 {
						t.Logf("%#x: %s is %q, gdb says %s %q", addr, name, got, g.what, g.ops)
					}
				case got != want:
					if bad++; bad < 20 {
						t.Logf("%#x: %s is %q, gdb says %q (%s %q)", addr, name, got, want, g.what, g.ops)
					}
				}
				if size, err := btf.Sizeof(have[n].Type); err == nil && size > 0 && g.length > 0 {
					if sized++; uint64(size) != g.length {
						bad++
						t.Logf("%#x: %s has %d bytes, gdb says %d", addr, name, size, g.length)
					}
				}
			}
		}
	}
	t.Logf("%d variables, %d sizes: %d differ, %d of no plain meaning; %d in registers, %d in memory, %d optimized out", checked, sized, bad, vague, kinds["in"], kinds["at"], kinds["optimized"])
	return bad <= checked/200 && checked >= len(addrs) && sized >= checked/2
}
