package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// goWords are words that users must not see: names of types, functions, packages and errors of
// Go and of guestprobe.
var goWords = regexp.MustCompile(`strconv\.|strings\.|syscall\.|json:|stringArray|intSlice|uint64|int64|uint8|\bEOF\b|ParseInt|ParseUint|ParseFloat|ParseBool|invalid syntax|` +
	`%!|\*[a-z]+\.[A-Z]|goroutine|panic|runtime error|nil pointer|encode instruction|context canceled|context deadline|dial unix|net/http|<nil>|interface \{`)

// badUsage returns invalid command lines, and ones that are rejected without a daemon: the exit
// status, a part of the message, and the arguments, separated by |.
func badUsage() (rows [][3]string) {
	add := func(status, want string, lines ...string) {
		for _, l := range lines {
			rows = append(rows, [3]string{status, want, l})
		}
	}
	all := []string{
		"attach|p:a f", "apply|-", "detach|a", "enable|a", "disable|a", "list", "trace", "stat", "map|list", "map|dump|1", "symbols", "tasks", "disas|f", "call|f",
		"guest|status", "guest|pause", "guest|resume", "guest|reset", "guest|console", "guest|text", "arm", "disarm", "optimization", "blacklist", "version",
	}
	for _, c := range all {
		name := strings.Split(c, "|")[0]
		add("2", "unknown flag: --nosuch", c+"|--nosuch")
		add("2", "unknown shorthand flag: 'Z'", c+"|-Z")
		add("2", `--format "xml": not table or json`, c+"|--format|xml")
		add("2", `--color "red": not auto, always or never`, c+"|--color|red")
		add("2", "flag needs an argument: --socket", c+"|--socket")
		if name != "version" && name != "apply" {
			add("3", "no daemon answers on /nonexistent/s", c)
			add("2", "socket", c+"|--socket|"+strings.Repeat("x", 200))
		}
		if !strings.Contains("attach apply detach enable disable list trace stat call", name) {
			add("2", "unexpected argument|not", c+"|a|b|c|d|e|f|g")
		}
	}
	add("2", "no command .*did you mean attach", "atach", "attch|p f", "attachh")
	add("2", "no command .*did you mean", "lst", "trce", "detac|a", "enabel|a", "symbol", "disa|f", "versoin", "blaklist", "gest|status")
	add("2", `no command "zzzzzzz"`, "zzzzzzz", "zzzzzzz|--nosuch")
	add("2", "guest has no command .*did you mean", "guest|statu", "guest|paus", "guest|rest", "guest|consol")
	add("2", "map has no command", "map|dmp", "map|xx|y")
	add("2", `--columns "[^"]*": no column "[^"]*"; there are address, k, symbol.offset, flags, name, plan, hits, missed, runs, optimized`, "list|-o|nosuch", "list|-o|name,nosuch,hits", "list|-o|", "list|-oname,", "list|--columns|name hits")
	add("2", "say (which|what|one)", "detach", "enable", "disable", "disas", "call", "map|dump")
	add("2", "", "attach", "apply|a|b|c", "detach|a|--all|b|--nosuch")
	add("2", "--timeout .*: not", "call|f|--timeout|0", "call|f|--timeout|soon", "call|f|--timeout|-1s", "call|f|--timeout|2h", "call|f|--timeout|1", "trace|--timeout|soon", "trace|--timeout|0", "trace|--timeout|-1s")
	add("2", "argument .*: not a 64-bit number", "call|f|x", "call|f|1e3", "call|f|0x1ffffffffffffffff", "call|f|-9223372036854775809", "call|f|1.5", "call|f|")
	add("2", "--file .*: want PATH=COPY", "attach|--file|x|p /x:f", "attach|--file|x=y|p /x:f", "attach|--file|/x=|p /x:f", "trace|--file|=y|p /x:f", "run|--file|y|-e|BEGIN { }")
	add("1", "--file: open /nonexistent/f: no such file", "attach|--file|/x=/nonexistent/f|p /x:f", "run|--file|/x=/nonexistent/f|-e|BEGIN { }")
	add("2", "at most 6", "call|f|1|2|3|4|5|6|7")
	add("2", "--count .*: not", "trace|--count|-1", "trace|-c|x", "trace|-c|1.5", "trace|--count|", "trace|-c|0x")
	add("2", "--limit|not a number", "symbols|--limit|-1", "symbols|--limit|0", "symbols|--limit|x")
	add("2", `--kind "[^"]*": not func, data or other`, "symbols|--kind|x", "symbols|--kind|", "symbols|--kind|FUNC")
	add("2", `--time "x": it is boot, relative or wall`, "trace|--time|x|p f")
	add("2", "--map-every", "trace|--map-every|1ms|p f", "trace|--map-every|x|p f")
	add("2", `--rule "x": not kernel, ours or both`, "analyze|--rule|x|f")
	add("2", `--backend "x": not interp or guest`, "bpf|exec|--backend|x")
	add("2", `completion has no command "nosuch"`, "completion|nosuch", "completion|nosuch|--nosuch")
	add("2", "not on or off", "optimization|maybe", "optimization|ON", "optimization|1")
	return rows
}

// TestBadUsage runs invalid command lines with and without --format json. Each must
// end with the right status, and its message must be in users' terms.
func TestBadUsage(t *testing.T) {
	rows := badUsage()
	if len(rows) < 220 {
		t.Errorf("%d command lines, want at least 220", len(rows))
	}
	env := map[string]string{api.SocketEnv: "/nonexistent/s"}
	for _, row := range rows {
		want := regexp.MustCompile(row[1])
		run := func(args ...string) (int, string, string) {
			var out, errs bytes.Buffer
			status := Program().Run(t.Context(), command.Env{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(k string) string { return env[k] }})
			return status, out.String(), errs.String()
		}
		args := strings.Split(row[2], "|")
		status, out, errs := run(args...)
		if fmt.Sprint(status) != row[0] || !want.MatchString(errs) || out != "" || goWords.MatchString(errs) {
			t.Errorf("%s: status %d, want %s, with %q:\n%s%s", filepath.Base(row[2]), status, row[0], row[1], out, errs)
		}
		if strings.Contains(row[2], "--format") || strings.HasSuffix(row[2], "|--socket") {
			continue
		}
		status, out, errs = run(append([]string{"--format", "json"}, args...)...)
		var e api.ErrorBody
		if err := json.Unmarshal([]byte(errs), &e); err != nil || e.Error.Code == "" || fmt.Sprint(status) != row[0] || out != "" || goWords.MatchString(e.Error.Message) {
			t.Errorf("%s --format json: status %d, %v:\n%s%s", row[2], status, err, out, errs)
		}
	}
}

// TestDaemonThatDoesNotAnswer: a stopped daemon still accepts connections.
func TestDaemonThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var out, errs bytes.Buffer
	status := Program().Run(t.Context(), command.Env{Args: []string{"--socket", path, "list"}, Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }})
	if status != exitUnreachable || !strings.Contains(errs.String(), "no daemon answers on "+path+" within 5s: its process is stopped") || goWords.MatchString(errs.String()) {
		t.Errorf("status %d: %s", status, errs.String())
	}
}
