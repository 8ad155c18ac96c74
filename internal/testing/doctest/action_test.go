package doctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// action is where the action is, as workflows name it.
const action = "/.github/actions/guestprobe"

// step of the action: the command behind "run: |", and its environment.
type actionStep struct{ env, run string }

// checkStep returns the step of the action that checks.
func checkStep(t *testing.T, text string) (s actionStep) {
	t.Helper()
	_, step, ok := strings.Cut(text, "\n      id: check\n")
	step, _, _ = strings.Cut(step, "\n    - ")
	_, env, ok2 := strings.Cut(step, "      env:\n")
	env, run, ok3 := strings.Cut(env, "      run: |\n")
	if !ok || !ok2 || !ok3 {
		t.Fatalf("the action has no step check with env and run:\n%s", step)
	}
	s.env = env
	for line := range strings.Lines(run + "\n") {
		s.run += strings.TrimPrefix(line, "        ")
	}
	return s
}

// inputs returns the action's inputs with their defaults; one that is required has none.
func inputs(t *testing.T, text string) map[string]string {
	t.Helper()
	_, part, _ := strings.Cut(text, "\ninputs:\n")
	part, _, ok := strings.Cut(part, "\noutputs:\n")
	if !ok {
		t.Fatal("the action has no inputs")
	}
	out := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z]+):\n    description: \S.*\n(?:    default: '?([^'\n]*)'?$|    required: true$)`).FindAllStringSubmatch(part+"\n", -1) {
		out[m[1]] = m[2]
	}
	if n := len(regexp.MustCompile(`(?m)^  [a-z]+:$`).FindAllString(part, -1)); n != len(out) {
		t.Fatalf("%d inputs, of which %d are read: %v", n, len(out), out)
	}
	return out
}

// replaceVars replaces what GitHub replaces in the environment of a step.
func replaceVars(t *testing.T, env string, in map[string]string) (out []string) {
	t.Helper()
	for line := range strings.Lines(env) {
		m := regexp.MustCompile(`^        ([A-Z]+): \$\{\{ inputs\.([a-z]+) \}\}\n$`).FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("line %q of the environment is not NAME: ${{ inputs.NAME }}", line)
		}
		value, known := in[m[2]]
		if !known {
			t.Errorf("there is no input %s", m[2])
		}
		out = append(out, m[1]+"="+value)
	}
	return out
}

// TestAction runs the command of the action, as GitHub does: with what the action says for its inputs, and with what
// workflows and documents give it.
func TestAction(t *testing.T) {
	t.Parallel()
	kvmtest.Require(t)
	if err := programs(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, action, "action.yml"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	step, known := checkStep(t, text), inputs(t, text)
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad one.bt")
	for path, script := range map[string]string{bad: "BEGIN { assert(0, \"no\"); }", filepath.Join(dir, "a.bt"): "kprobe:vfs_read { exit(); }", filepath.Join(dir, "b.bt"): "kprobe:vfs_read { print($1); exit(); }"} {
		if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, in map[string]string) (status int, read func(string) string) {
		t.Helper()
		all := map[string]string{"name": name}
		for k, v := range known {
			if all[k] == "" {
				all[k] = v
			}
		}
		for k, v := range in {
			if _, ok := known[k]; !ok {
				t.Errorf("there is no input %s", k)
			}
			all[k] = v
		}
		temp := t.TempDir()
		cmd := exec.CommandContext(patience.Context(t), "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.run)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), replaceVars(t, step.env, all)...)
		cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"), "RUNNER_TEMP="+temp, "GITHUB_OUTPUT="+filepath.Join(temp, "output"), "GITHUB_STEP_SUMMARY="+filepath.Join(temp, "summary"))
		said, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s", name, said)
		return cmd.ProcessState.ExitCode(), func(path string) string {
			b, err := os.ReadFile(filepath.Join(temp, path))
			if err != nil {
				t.Error(err)
			}
			return string(b)
		}
	}
	status, read := run("two", map[string]string{"scripts": dir + "/?.bt", "flags": "--arg 5 --vcpus 2", "timeout": "2m", "jobs": "2"})
	if want := "2 tests: 2 passed, in "; status != 0 || !strings.Contains(read("summary"), want) {
		t.Errorf("status %d; the summary does not say %q", status, want)
	}
	if got := read("output"); !strings.Contains(got, "/guestprobe/two\n") || !strings.Contains(got, "/guestprobe/two/junit.xml\n") || !strings.Contains(read("guestprobe/two/junit.xml"), `tests="2"`) {
		t.Errorf("outputs are %q", got)
	}
	// One that fails has its summary, and is kept. Names with blanks are for patterns.
	status, read = run("one", map[string]string{"scripts": dir + "/bad*.bt"})
	if status != 1 || !strings.Contains(read("summary"), "assert failed: no") || !strings.Contains(read("guestprobe/one/kept/bad_one/output.txt"), "assert failed: no") {
		t.Errorf("status %d", status)
	}
	if status, _ = run("none", map[string]string{"scripts": dir + "/none*.bt"}); status != 1 {
		t.Errorf("status %d where no file matches", status)
	}

	// What uses it gives it inputs that it has; what our own workflow has it run on the built-in guest is run here.
	uses := regexp.MustCompile(`(?m)^( *)(?:- )?uses: \S*` + regexp.QuoteMeta(strings.TrimPrefix(action, "/")) + `(?:@\S+)?\n(?: *if: .*\n)? *with:\n((?: *[a-z]+: .*\n)+)`)
	seen := 0
	for _, doc := range []string{".github/workflows/ci.yml", "docs/start/ci.md"} {
		b, err := os.ReadFile(filepath.Join(root, doc))
		if err != nil {
			t.Fatal(err)
		}
		if n, all := len(uses.FindAllString(string(b), -1)), strings.Count(string(b), "uses: ")-len(regexp.MustCompile(`uses: actions/`).FindAllString(string(b), -1)); n != all {
			t.Errorf("%s uses the action %d times, of which %d can be read", doc, all, n)
		}
		for _, m := range uses.FindAllStringSubmatch(string(b), -1) {
			seen++
			in := map[string]string{}
			for line := range strings.Lines(m[2]) {
				k, v, _ := strings.Cut(strings.TrimSpace(line), ": ")
				if in[k] = strings.Trim(v, "'"); !hasKey(known, k) {
					t.Errorf("%s: there is no input %s", doc, k)
				}
			}
			if doc == ".github/workflows/ci.yml" && in["kernel"] == "" {
				if status, _ := run(in["name"], in); status != 0 {
					t.Errorf("%s: status %d with %v", doc, status, in)
				}
			}
		}
	}
	if seen < 3 {
		t.Errorf("the action is used %d times", seen)
	}
	// Its flags are there: a kernel that is none is refused for what it is.
	if status, read := run("kernel", map[string]string{"scripts": dir + "/a.bt", "kernel": dir + "/none", "initrd": dir + "/none", "append": "console=ttyS0 quiet"}); status != 1 || !strings.Contains(read("summary"), "none") {
		t.Errorf("status %d of a kernel that is not there: %s", status, fmt.Sprint(known))
	}
}

func hasKey(m map[string]string, k string) bool {
	_, ok := m[k]
	return ok
}
