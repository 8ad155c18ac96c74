package doctest

import (
	"bytes"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

const module = "github.com/guestprobe/guestprobe"

// makeModule makes a module of its own, with this checkout in place of ours, that
// holds these files. What it imports of internal packages does not build.
func makeModule(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	// Our own requirements, of the same versions, are all that it can need.
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(mod), "module "+module, "module example.org/first", 1)
	files["go.mod"] = text + "\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + checkout + "\n"
	files["go.sum"] = string(sum)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestFirstProgram builds the programs of docs/handlers.md as modules of their own, and runs each on the guest, or with the daemon, that it is shown with.
func TestFirstProgram(t *testing.T) {
	t.Parallel()
	all, programs := blocks(t, "docs/handlers.md"), 0
	for i, b := range all {
		if b.info == "go" && strings.HasPrefix(b.text, "package main\n") {
			if i+1 == len(all) || all[i+1].info != "console" {
				t.Fatalf("%s:%d: no session follows the program", b.doc, b.line)
			}
			if n := strings.Count(b.text, "\n"); strings.Contains(b.text, module+"/probe/session\"") && n > 40 {
				t.Errorf("%s:%d: the program with a session has %d lines: 40 are enough for a definition, a script and its map", b.doc, b.line, n)
			}
			t.Run(fmt.Sprint(b.line), func(t *testing.T) { runProgram(t, b, all[i+1]) })
			programs++
		}
	}
	if all[0].info != "go" || programs != 3 {
		t.Errorf("%d programs, and the first block is %q", programs, all[0].info)
	}
}

// runProgram builds a program as a module of its own, and runs it as its session ends.
func runProgram(t *testing.T, program, session block) {
	if clean, err := format.Source([]byte(program.text)); err != nil || string(clean) != program.text {
		t.Errorf("%s:%d: the program is not formatted: %v", program.doc, program.line, err)
	}
	dir := makeModule(t, map[string]string{"main.go": program.text})
	build := exec.Command("go", "build", "-mod=mod", "-o", "first", ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOFLAGS=", "GOPROXY=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	kvmtest.Require(t)
	if strings.Contains(session.text, "$ guestprobed ") {
		var todo []step
		for _, s := range parseSteps(session.doc, session.line, session.text) {
			s.command = strings.Replace(s.command, "go run . ", "./first ", 1)
			todo = append(todo, s)
		}
		play(t, dir, todo, numbers)
		return
	}
	_, run, ok := strings.Cut(session.text, "$ go run . ")
	if !ok {
		t.Fatalf("%s:%d: the session does not run the program", session.doc, session.line)
	}
	args, shown, _ := strings.Cut(strings.TrimSpace(run), "\n")
	elf, err := filepath.Abs(filepath.Join(root, "guest/builtin/builtin.elf"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(dir, "first"), append([]string{elf}, strings.Fields(args)[1:]...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	number := regexp.MustCompile(`\d+`)
	like := func(s string) string { return number.ReplaceAllString(strings.TrimSpace(s), "#") }
	if got, want := like(out.String()), like(shown); got != want {
		t.Errorf("the program said\n%s\nwhere the document has\n%s", got, want)
	}
}
