package hostdoc

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The document equals Render's output for the records.
func TestDocument(t *testing.T) {
	const file = "../../../docs/hosts.md"
	all, err := Load(os.DirFS("../../../docs/hosts"))
	if err != nil {
		t.Fatal(err)
	}
	want := Render(all)
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(string(got), "\n")); d != "" {
		t.Errorf("docs/hosts.md is out of date (-want +got); `make generate` writes it\n%s", d)
	}
	for i, l := range strings.Split(want, "\n") {
		if strings.Contains(l, "%!") {
			t.Errorf("line %d: %s", i+1, l)
		}
	}
}

// Every test named in the document exists in package kvm.
func TestFactsAreAsserted(t *testing.T) {
	files, err := filepath.Glob("../../../kvm/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d test files of kvm, error %v", len(files), err)
	}
	tests := map[string]bool{}
	for _, f := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tree.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				tests[fn.Name.Name] = true
			}
		}
	}
	for _, f := range facts {
		for name := range strings.SplitSeq(f.test, ", ") {
			if !tests[name] {
				t.Errorf("%q is said to be asserted by %s, which does not exist", f.what, name)
			}
		}
	}
}

const good = `{"date":"2026-11-20","kernel":"6.1.0","module":"kvm_intel","emulator":"bochs 2.7","doctor":{
	"kvm":{"usable":true,"api":12,"path":"/dev/kvm","vendor":"GenuineIntel","syncRegs":true,"readonlyMem":true,"maxVcpus":4,"elapsed":"1ms"},
	"traps":{"cpl0":{"int3":"debug-exit","inject":"at","step":"works","hwbreak":"works","watch":"works"},
	"cpl3":{"int3":"vector","inject":"none","step":"none","hwbreak":"none","watch":"none"}}}}`

func TestParse(t *testing.T) {
	change := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in the record", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	for _, tt := range []struct {
		name, record, text string
		err                string // part of the error; "": no error
	}{
		{"good", "kvm_intel-bochs", good, ""},
		{"without emulator", "kvm_intel", change(`"bochs 2.7"`, `""`), ""},
		{"empty", "kvm_intel-bochs", "", "EOF"},
		{"two", "kvm_intel-bochs", good + good, "more than one value"},
		{"unknown field", "kvm_intel-bochs", change(`"watch"`, `"peek"`), `unknown field "peek"`},
		{"no trap report", "kvm_intel-bochs", change(`"step":"works",`, ``), "calibration of CPL0 is not complete"},
		{"bad date", "kvm_intel-bochs", change("2026-11-20", "2026-11-31"), "day out of range"},
		{"no kernel", "kvm_intel-bochs", change("6.1.0", ""), "kernel or module is missing"},
		{"other module", "kvm_amd-qemu", good, `it is of module kvm_intel under emulator "bochs 2.7"`},
		{"emulator in the name only", "kvm_intel-bochs", change("bochs 2.7", ""), `under emulator ""`},
		{"emulator in the record only", "kvm_intel", good, `under emulator "bochs 2.7"`},
		{"not usable", "kvm_intel-bochs", change(`"usable":true`, `"usable":false,"reason":"no device"`), "KVM was not usable: no device"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := parse(tt.record, []byte(tt.text))
			if tt.err == "" {
				if err != nil || r.Name != tt.record || r.Kernel != "6.1.0" || r.Doctor.Traps.CPL0.Int3 != "debug-exit" {
					t.Errorf("got %+v, error %v", r, err)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), "host record "+tt.record+": ") || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got error %v, want one about %q", err, tt.err)
			}
		})
	}
}

// The columns show what each kind of host supports.
func TestRenderFeatures(t *testing.T) {
	r, err := parse("kvm_intel-bochs", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	text := Render([]Record{r, r, r})
	for _, row := range []string{
		"| kprobes, kretprobes and jprobes on kernel code | any guest |",
		"| kprobes, kretprobes and jprobes on user code | guests with the vector 3 stub |",
		"| write watch, kernel | yes |",
		"| write watch, user | only with `emulate` |",
		"| execute watch, kernel | yes |",
		"| stepping in place in user code if the instruction's target is not known | no |",
		"| ioctls for each exit | 1 |",
	} {
		if !strings.Contains(text, row) {
			t.Errorf("no row %q in:\n%s", row, text)
		}
	}
}
