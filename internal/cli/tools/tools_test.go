package tools

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestDocument: every tool has a summary, and docs/tools.md has the summary and an example of each tool, which the
// documents' tests run.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile("../../../docs/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(b), "\n## ")[1:]
	var names []string
	for _, tool := range List() {
		names = append(names, tool.Name)
		if !strings.HasSuffix(tool.Summary, ".") || tool.Help == "" || len(tool.Variants) == 0 {
			t.Errorf("%+v", tool)
		}
		i := slices.IndexFunc(parts, func(p string) bool { return strings.HasPrefix(p, tool.Name+"\n") })
		if i < 0 {
			t.Errorf("the document does not have %s", tool.Name)
			continue
		}
		for _, want := range []string{strings.TrimSpace("`guestprobe tool "+tool.Name+" "+tool.Usage) + "`", tool.Summary, strings.ReplaceAll(strings.TrimSpace(tool.Help), "\n", " "), "$ guestprobe tool " + tool.Name} {
			if !strings.Contains(parts[i], want) {
				t.Errorf("%s: the document does not have %q", tool.Name, want)
			}
		}
	}
	if len(names) != len(parts) || !slices.IsSorted(names) {
		t.Errorf("the tools are %q, and the document has %d", names, len(parts))
	}
}

// TestScript checks which script and arguments are chosen for a guest.
func TestScript(t *testing.T) {
	linux := func(p string) bool { return p == "__x64_sys_*" || p == "update_rq_clock" }
	other := func(string) bool { return false }
	find := func(name string) Tool {
		tool, ok := Find(name)
		if !ok {
			t.Fatal(name)
		}
		return tool
	}
	for _, c := range []struct {
		tool string
		args []string
		has  func(string) bool
		want string // arguments, or the error
	}{
		{"syscount", nil, linux, "__x64_sys_*"},
		{"syscount", []string{"my_*"}, other, "my_*"},
		{"syscount", nil, other, "syscount: the guest has no function __x64_sys_* or sys_*: say which PATTERN is"},
		{"heat", []string{"f"}, other, "f 100"},
		{"heat", nil, other, "heat needs an argument: PATTERN"},
		{"heat", []string{"f", "1", "2"}, other, `heat: unexpected argument "2"`},
		{"runqlen", nil, linux, ""},
		{"runqlen", nil, other, "runqlen: the guest has no function sched_enqueue, and none update_rq_clock"},
	} {
		_, args, err := find(c.tool).Script(c.args, c.has)
		got := strings.Join(args, " ")
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s %q: %q, want %q", c.tool, c.args, got, c.want)
		}
	}
	if s, _, _ := find("runqlen").Script(nil, linux); !strings.Contains(s, "nr_running") {
		t.Errorf("runqlen for Linux is\n%s", s)
	}
	if _, ok := Find("nothing"); ok {
		t.Error("there is a tool that is not there")
	}
}
