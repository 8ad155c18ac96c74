package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// daemonSets are sets of daemons and the flags that select them. vm10 rejects everything.
var daemonSets = []struct {
	name string
	args []string
}{
	{"one", []string{"--socket", "$DIR/vm1.sock"}},
	{"one that fails", []string{"--socket", "$DIR/vm10.sock"}},
	{"one that is not there", []string{"--socket", "$DIR/none.sock"}},
	{"fleet of one", []string{"--fleet", "$FLEET", "--expect", "1", "--where", "name=vm1"}},
	{"fleet of one that fails", []string{"--fleet", "$FLEET", "--expect", "1", "--where", "name=vm10"}},
	{"fleet of three, one of which fails", []string{"--fleet", "$FLEET", "--expect", "3"}},
	{"all of this machine, of which two fail", []string{"--all"}},
}

// setCases are command lines, by the file with their output.
var setCases = map[string][]string{
	"list": {
		"list", "list --wide", "list -o name,hits", "list --wide -o name", "list -q", "list -q --format json", "list --format json", "list --format {{.Daemon}}/{{.Name}}", "list --format kernel",
		"list --format kernel myread", "list --format defs", "list myread", "list own2", "list nosuch", "list --no-headers",
	},
	"stat": {
		"stat", "stat --per-cpu", "stat -q", "stat -q --format json", "stat --format json", "stat --format {{.Daemon}}/{{.Name}}:{{.Hits}}", "stat --format kernel", "stat myread", "stat own2", "stat nosuch",
	},
	"probes": {
		"detach myread", "detach own1", "detach nosuch", "detach --all", "detach", "detach --all --format json", "enable own2", "disable --all", "filter myread fd>3", "filter --clear myread", "filter myread",
		"attach", "attach --format json p:x_vfs_read", "attach p:x_vfs_read", "attach p:x_vfs_*", "attach -- -:myread", "attach # p:x_nosuch", "attach p:a_vfs_read p:b_nosuch", "attach p:a_vfs_read_a=%%", "attach --space no p:x_vfs_read",
		"attach --keep probes p:x_vfs_read", "detach probes",
	},
	"scripts": {
		"scripts", "scripts --format json", "script reads", "script reads --format json", "script ended", "script others", "script nosuch", "script --follow reads", "script --heat --follow reads", "script --interval 2s reads",
		"stop reads", "stop reads --format json", "stop ended", "stop others", "stop nosuch",
		"run --detach left -e kprobe:vfs_read", "run --detach refused -e kprobe:vfs_read", "scripts --no-headers", "stop left",
	},
	"run": {
		"run -e exit()", "run -e exit() --format json", "run -e exit(3)", "run -e strict_exit(3)", "run -e strict_exit()", "run -e nope", "run -e nope --format json", "run -e cut", "run -e gone", "run -e detached",
		"run -e warn_missed_exit()", "run -e warn_exit() --format json", "run -v -e exit()", "run -v -e license_exit()", "run -v -e exit() --format json", "run -e waits --interval 1s until Attached", "run -e waits --interval 1s --format json until Attached", "run -d 300ms -e asks",
		"run -d 1us -e asks", "run", "run -l", "run -l -e x", "run --heat -e exit()", "run --heat --format json -e exit()", "run --detach x -d 1s -e exit()", "run --detach 9 -e exit()", "run --metrics -e exit()",
		"run -o $OUT -e exit()", "run -o $OUT -e nope", "run --detach x -v -e exit()", "run --file x -e exit()", "run -e asks until Attached",
	},
	"trace": {
		"trace p:exits", "trace -c 2 p:more_*", "trace -c 2 --format json p:more", "trace p:more until Tracing", "trace --format json p:more until Tracing", "trace -c 2 p:post", "trace -c 5 p:exits", "trace -c 5 --timeout 400ms p:x",
		"trace --timeout 400ms p:more", "trace -q --timeout 400ms p:more", "trace --timeout 400ms --format {{.Daemon}}/{{.CPU}}{{.Symbol}} p:more", "trace -q --timeout 400ms --format {{.Daemon}}/{{.CPU}} p:more", "trace p:cut_more", "trace --format json p:cut_more",
		"trace p:nosuch", "trace p:nosuch --format json", "trace --probe myread -c 1", "trace --probe myread2", "trace --probe myread p:x", "trace -c 1 --time wall p:x", "trace -c 1 --time relative p:x", "trace --time no p:x", "trace --no-headers -c 1 p:x",
		"trace -c 2 -o $OUT p:x", "trace -o $OUT p:nosuch", "trace -c 2 -o $OUT --format chrome p:x", "trace --format json --map m p:x", "trace --timeout -1s p:x", "trace --file x p:x", "trace -q --format json p:x", "trace --space no p:x",
	},
}

// TestSets checks the output, the errors and the exit status of each command that works with several daemons, for sets of daemons.
func TestSets(t *testing.T) {
	url, _ := keepingServer(t)
	dir := t.TempDir()
	startFake(t, dir, url, "vm1", 1, false)
	startFake(t, dir, url, "vm2", 2, false)
	startFake(t, dir, url, "vm10", 10, true)
	startStrange(t, dir, "vm20")
	for file, cases := range setCases {
		t.Run(file, func(t *testing.T) {
			// Cases of scripts and probes change the fleet's definitions, which later cases use.
			if file != "scripts" && file != "probes" {
				t.Parallel()
			}
			var b strings.Builder
			for _, c := range cases {
				fmt.Fprintf(&b, "######## %s\n", c)
				last := ""
				for _, set := range daemonSets {
					got := runOnSet(t, dir, url, c, set.args)
					if got == last {
						got = "as the one before\n"
					} else {
						last = got
					}
					fmt.Fprintf(&b, "==== %s\n%s", set.name, got)
				}
			}
			golden := filepath.Join("testdata", "sets", file+".txt")
			if flag.Lookup("update").Value.String() == "true" { // the flag of docs_test.go
				if err := os.WriteFile(golden, []byte(b.String()), 0o666); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			compareCases(t, string(want), b.String())
		})
	}
}

// compareCases reports the cases that differ.
func compareCases(t *testing.T, want, got string) {
	t.Helper()
	ws, gs := strings.Split(want, "######## "), strings.Split(got, "######## ")
	for i := range max(len(ws), len(gs)) {
		var w, g string
		if i < len(ws) {
			w = ws[i]
		}
		if i < len(gs) {
			g = gs[i]
		}
		if w != g {
			t.Errorf("got:\n%s\nwant:\n%s", g, w)
		}
	}
}

var (
	wallTime   = regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?`)
	ofThisHost = regexp.MustCompile(`"(id|by|run|fleet)": "[^"]*"`)
	ofThisRun  = regexp.MustCompile(`"stream":\d+`)
)

// runOnSet runs a command line on a set and returns its output. In arguments, _ means a space. After "until TEXT", which ends the line, it
// presses Ctrl-C when that text is printed.
func runOnSet(t *testing.T, dir, url, line string, set []string) string {
	t.Helper()
	line, until, _ := strings.Cut(line, " until ")
	fields := strings.Fields(line)
	out := filepath.Join(t.TempDir(), "out")
	places := strings.NewReplacer("$DIR", dir, "$FLEET", url, "$OUT", out)
	args := []string{}
	for i, a := range slices.Concat(set, fields) {
		if a = places.Replace(a); i >= len(set) && strings.ContainsAny(a, ":(") {
			a = strings.ReplaceAll(a, "_", " ")
			a = strings.ReplaceAll(a, "vfs ", "vfs_")
		}
		args = append(args, a)
	}
	ctx, cancel := context.WithCancelCause(patience.Context(t))
	defer cancel(nil)
	stdout, stderr := &lockedBuffer{}, &lockedBuffer{}
	done := make(chan struct{})
	go func() {
		for until != "" && !strings.Contains(stderr.String(), until) {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
		if until != "" {
			cancel(errors.New("interrupt signal received"))
		}
	}()
	status := Program().Run(ctx, command.Env{Args: args, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr, Getenv: func(name string) string {
		return map[string]string{socketsEnv: dir, api.SocketEnv: "", answerTimeEnv: "5m"}[name]
	}})
	close(done)
	said := stderr.String()
	if strings.HasPrefix(line, "run") || strings.HasPrefix(line, "trace") || strings.HasPrefix(line, "stop") { // the daemons answer in any order
		lines := strings.SplitAfter(said, "\n")
		slices.Sort(lines)
		said = strings.Join(lines, "")
	}
	text := stdout.String()
	if b, err := os.ReadFile(out); err == nil {
		text += "-- file\n" + string(b)
	}
	if said != "" {
		text += "-- stderr\n" + said
	}
	text += fmt.Sprintf("-- exit status %d\n", status)
	text = strings.NewReplacer(dir, "$DIR", url, "$FLEET", out, "$OUT").Replace(text)
	text = wallTime.ReplaceAllString(text, "TIME")
	text = ofThisHost.ReplaceAllString(text, `"$1": "..."`)
	return ofThisRun.ReplaceAllString(text, `"stream":N`)
}
