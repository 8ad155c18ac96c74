package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestMistakes: habits from other programs work, or give an error that names the right command.
func TestMistakes(t *testing.T) {
	const unanswered = "no daemon answers on /nonexistent/s" // the command line is valid
	env := map[string]string{api.SocketEnv: "/nonexistent/s"}
	for _, row := range [][2]string{
		{"attach|p|vfs_read|fd=%di", "guestprobe: a definition is one argument: write it in quotes, as 'p vfs_read fd=%di'"},
		{"attach|p:x|vfs_read", "write it in quotes, as 'p:x vfs_read'"},
		{"attach|r16:x|vfs_read|$retval", "write it in quotes, as 'r16:x vfs_read $retval'"},
		{"trace|p|vfs_read", "write it in quotes, as 'p vfs_read'"},
		{"attach|p vfs_read|p vfs_write", unanswered},
		{"run|kprobe:vfs_read {}", `guestprobe: "kprobe:vfs_read {}" is not a file: to run a script from the command line, put it after -e`},
		{"run|-q|-e|BEGIN{}", "guestprobe: unknown shorthand flag: 'q' in -q: messages are on standard error: 2>/dev/null leaves them out"},
		{"run|-c|ls|-e|BEGIN{}", "programs of the guest are started in the guest"},
		{"run|-p|1|-e|BEGIN{}", "a condition of the script chooses a process"},
		{"run|-f|json|-e|BEGIN{}", "'f' in -f: --format json prints JSON"},
		{"run|-k|-e|BEGIN{}", "failures are reported without it"},
		{"run|--dry-run|-e|BEGIN{}", "unknown flag: --dry-run: --check compiles the script and does not run it"},
		{"run|--no-warnings|-e|BEGIN{}", "unknown flag: --no-warnings: messages are on standard error"},
		{"run|--check|-e|BEGIN{}", unanswered},
		{"run|--check|-l", "-l lists places: it cannot be used with --check"},
		{"run|--check|--detach|x|-e|BEGIN{}", "--check runs nothing: it cannot be used with --detach"},
		{"list|-o|json", `guestprobe: --columns "json": no column "json": --format json prints JSON`},
		{"list|--json", "guestprobe: unknown flag: --json: --format json prints JSON"},
		{"list|-f|json", "guestprobe: unknown shorthand flag: 'f' in -f: --format json prints JSON"},
		{"stat|-j", "'j' in -j: --format json prints JSON"},
		{"guest|status|--json", "unknown flag: --json: --format json prints JSON"},
		{"trace|-n|5", "guestprobe: unknown shorthand flag: 'n' in -n: -c N (--count N) ends the trace after N hits"},
		{"trace|-d|1s", "'d' in -d: --timeout 1s ends the trace after a time"},
		{"detach|--all|-q", "'q' in -q: >/dev/null leaves the table out"},
		{"gdb|-ex|list", "'e' in -ex: arguments for GDB follow --, as in 'guestprobe gdb -- -ex list'"},
		{"profile|-F|99", "'F' in -F: --hz N sets the rate"},
		{"attach|--filter|fd==3|--filter|count==4|p vfs_read fd count", `--filter "count==4": it is given twice: join them with &&`},
		{"doctor|--vm|1", "doctor uses no daemon, and no guest of others: leave out --vm"},
		{"ps|--vm|1", "ps lists the daemons of this machine: leave out --core and --vm"},
		{"trace|--cuont|5", "unknown flag: --cuont: did you mean count?"},
		{"guest|stop", `guestprobe: guest has no command "stop": 'guestprobe guest pause' stops the vCPUs; a signal to guestprobed ends the guest`},
		{"guest|reboot", "'guestprobe guest reset' boots the guest again"},
		{"funclatency|vfs_read", `guestprobe: no command "funclatency": it is a tool: 'guestprobe tool funclatency'`},
		{"web|--port|80", "guestprobe: unknown flag: --port: 'guestprobed --web-listen 127.0.0.1:7777' serves the page there"},
		{"filter|myread", "guestprobe: give the filter as well, as in: guestprobe filter myread 'count > 100'; --clear myread removes it"},
		{"ls", unanswered}, {"ls|-q", unanswered}, {"rm|x", unanswered}, {"logs", unanswered}, {"console|-f", unanswered}, {"pause", unanswered}, {"resume|--vcpu|1", unanswered}, {"status", unanswered},
		{"rm", "say which"},
		{"lst", `no command "lst": did you mean list?`},
		{"lz", "no command \"lz\"\n"},
		{"bg", "no command \"bg\": did you mean bt?\n"},
		{"attahc|p f", "did you mean attach?"},
		{"gu|status", "no command \"gu\"\n"},
		{"gue|status", "did you mean guest?"},
	} {
		var out, errs bytes.Buffer
		status := Program().Run(t.Context(), command.Env{Args: strings.Split(row[0], "|"), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(k string) string { return env[k] }})
		want := 2
		if row[1] == unanswered {
			want = 3
		}
		if status != want || !strings.Contains(errs.String(), row[1]) || out.Len() != 0 || strings.Contains(errs.String(), "put -- before") {
			t.Errorf("%s: status %d\n%s%swant %d, %s", row[0], status, &out, &errs, want, row[1])
		}
	}
	// A file can have any name.
	path := filepath.Join(t.TempDir(), "a{b")
	if err := os.WriteFile(path, []byte("BEGIN { }"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if status := Program().Run(t.Context(), command.Env{Args: []string{"run", path}, Stdout: &out, Stderr: &errs, Getenv: func(k string) string { return env[k] }}); status != 3 {
		t.Errorf("a file %s: status %d: %s", path, status, &errs)
	}
}

// TestAliases: an alias accepts the same arguments as its command, and is not in the help.
func TestAliases(t *testing.T) {
	root := Program().Describe()
	for alias, of := range map[string]string{"ls": "list", "rm": "detach", "logs": "guest console", "console": "guest console", "pause": "guest pause", "resume": "guest resume", "status": "guest status"} {
		a, _, err := root.Find([]string{alias})
		if err != nil || !a.Hidden || a.Name() != alias {
			t.Errorf("%s: %v, %v", alias, a.Name(), err)
			continue
		}
		b, _, err := root.Find(strings.Fields(of))
		if err != nil || b.Hidden || a.Short != b.Short || a.LocalFlags().FlagUsages() != strings.ReplaceAll(b.LocalFlags().FlagUsages(), "help for "+b.Name(), "help for "+alias) {
			t.Errorf("%s is not %s: %v\n%s\n%s", alias, of, err, a.LocalFlags().FlagUsages(), b.LocalFlags().FlagUsages())
		}
	}
	if help := root.UsageString(); strings.Contains(help, "\n  ls ") || strings.Contains(help, "\n  rm ") || !strings.Contains(help, "\n  list ") {
		t.Errorf("help of guestprobe:\n%s", help)
	}
}
