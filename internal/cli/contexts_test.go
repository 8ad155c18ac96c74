package cli

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// ranCommand is a command's output and exit status.
type ranCommand struct {
	out, errs string
	status    int
}

// runIn runs a command line, with arguments separated by |, in an environment.
func runIn(t *testing.T, env map[string]string, line string) ranCommand {
	t.Helper()
	var out, errs bytes.Buffer
	status := Program().Run(patience.Context(t), command.Env{Args: strings.Split(line, "|"), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(k string) string { return env[k] }})
	return ranCommand{out.String(), errs.String(), status}
}

// TestSocketNames: --socket accepts a name that ps shows; without --socket commands use the only running daemon.
func TestSocketNames(t *testing.T) {
	url, _ := keepingServer(t)
	dir, other := t.TempDir(), t.TempDir()
	env := map[string]string{socketsEnv: dir + ":" + other, answerTimeEnv: "5m"}
	want := func(line string, status int, out, errs string) {
		t.Helper()
		if got := runIn(t, env, line); got.status != status || !strings.Contains(got.out, out) || !strings.Contains(got.errs, errs) {
			t.Errorf("%s: status %d\n%s%swant %d, %q, %q", line, got.status, got.out, got.errs, status, out, errs)
		}
	}
	want("list", 3, "", "no daemon answers on "+api.SystemSocket)
	want("-s|vm1|list", 3, "", `guestprobe: no daemon answers: none is called "vm1" (--socket), and none runs`)
	startFake(t, dir, url, "vm1", 1, false)
	want("list", 0, "kprobes/own1", "")
	want("-s|vm1|list", 0, "kprobes/own1", "")
	want("-s|vm1.sock|list", 0, "kprobes/own1", "")
	want("-s|"+dir+"/vm1.sock|list", 0, "kprobes/own1", "")
	want("-s|vm2|list", 3, "", `none is called "vm2" (--socket); those that run: vm1`)

	startFake(t, dir, url, "vm2", 2, false)
	want("list", 2, "", "guestprobe: 2 daemons run on this machine (vm1, vm2): choose one with -s NAME")
	want("-s|vm2|list", 0, "kprobes/own2", "")
	env[api.SocketEnv] = "vm2"
	want("list", 0, "kprobes/own2", "")
	env[api.SocketEnv] = "vm3"
	want("list", 3, "", `none is called "vm3" (`+api.SocketEnv+`); those that run: vm1, vm2`)
	delete(env, api.SocketEnv)

	startFake(t, other, url, "vm1", 3, false)
	want("-s|vm1|list", 2, "", fmt.Sprintf(`guestprobe: --socket: 2 daemons are called "vm1": choose %s/vm1.sock or %s/vm1.sock`, dir, other))

	// A file in the working directory takes precedence over a name, as in earlier versions.
	t.Chdir(other)
	if err := os.Rename("vm1.sock", "vm2"); err != nil {
		t.Fatal(err)
	}
	want("-s|vm2|list", 0, "kprobes/own3", "")

	// The user's own daemon takes precedence over others, unless it was killed.
	userFolder := func() string {
		env["XDG_RUNTIME_DIR"] = t.TempDir()
		own := filepath.Dir(api.UserSocket(env["XDG_RUNTIME_DIR"]))
		if err := os.Mkdir(own, 0o700); err != nil {
			t.Fatal(err)
		}
		env[socketsEnv] = own + ":" + dir
		return own
	}
	startFake(t, userFolder(), url, "guestprobed", 4, false)
	want("list", 0, "kprobes/own4", "")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(userFolder(), "guestprobed.sock")})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	want("list", 2, "", "2 daemons run on this machine (vm1, vm2)")
}

// TestContexts: a context replaces the flags that select daemons.
func TestContexts(t *testing.T) {
	url, _ := keepingServer(t)
	dir, home := t.TempDir(), t.TempDir()
	startFake(t, dir, url, "vm1", 1, false)
	startFake(t, dir, url, "vm2", 2, false)
	env := map[string]string{socketsEnv: dir, answerTimeEnv: "5m", "HOME": home}
	path := filepath.Join(home, ".config", "guestprobe", "contexts.json")
	do := func(line string, status int, out, errs string) {
		t.Helper()
		if got := runIn(t, env, line); got.status != status || got.out != out || got.errs != errs {
			t.Errorf("%s: status %d\n%s\n%swant %d\n%s\n%s", line, got.status, got.out, got.errs, status, out, errs)
		}
	}
	hint := func(command string) string {
		return fmt.Sprintf("Run 'guestprobe %s --help' for usage.\n", command)
	}
	do("context|list", 0, "  NAME  DAEMONS  CREDENTIALS\n", "")
	do("context|use|web", 2, "", "guestprobe: no context \"web\": none is defined; 'guestprobe context set' defines one\n"+hint("context use"))
	do("context|set|web", 2, "", "guestprobe: give the daemon or the fleet, as in: guestprobe context set web -s NAME, or --fleet URL --fleet-creds FILE\n"+hint("context set"))
	do("context|set|a/b|-s|vm1", 2, "", "guestprobe: context \"a/b\": a name has letters, digits and _ . - (at most 64)\n"+hint("context set"))
	do("context|set|web|-s|vm1|--where|x=1", 2, "", "guestprobe: --where, --expect and --fleet-...: go with --fleet, --where also with --all\n"+hint("context set"))
	do("context|set|web|-s|vm1", 0, "", "'guestprobe context use web' makes web the current context; --context web uses it once.\n")
	do("context|set|farm|--fleet|"+url+"|--where|name=vm2", 0, "", "'guestprobe context use farm' makes farm the current context; --context farm uses it once.\n")
	do("context|list|--no-headers", 0, "  farm  "+url+" where name=vm2  -\n  web   vm1"+strings.Repeat(" ", len(url+" where name=vm2")-3)+"  -\n", "")
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Errorf("%s: %v, %v", path, st.Mode(), err)
	}

	do("--context|web|list|-q", 0, "kprobes/myread\nkprobes/own1\n", "")
	do("--context|farm|list|-q", 0, "kprobes/myread\nkprobes/own2\n", "")
	do("--context|farm|--where|name=vm1|list|-q", 0, "kprobes/myread\nkprobes/own1\n", "")
	do("--context|nosuch|list", 2, "", "guestprobe: there is no context \"nosuch\"; defined are farm, web\n"+hint("list"))
	do("--context|web|-s|vm2|list", 2, "", "guestprobe: --context names a daemon or a fleet: it cannot be used with --socket, --core, --fleet and --all\n"+hint("list"))
	do("context|use|web", 0, "", "web is the current context.\n")
	do("list|-q", 0, "kprobes/myread\nkprobes/own1\n", "")
	do("context|list|--format|{{.Name}} {{.Current}}", 0, "farm false\nweb true\n", "")
	do("-s|vm2|list|-q", 0, "kprobes/myread\nkprobes/own2\n", "")
	do("list|--all|-q", 0, "kprobes/myread\nkprobes/own1\nkprobes/own2\n", "")
	do("ps|--format|{{.Name}}", 0, "vm1\nvm2\n", "")
	env[contextEnv] = "farm"
	do("list|-q", 0, "kprobes/myread\nkprobes/own2\n", "")
	env[api.SocketEnv] = "vm1"
	do("list|-q", 0, "kprobes/myread\nkprobes/own1\n", "")
	delete(env, api.SocketEnv)
	delete(env, contextEnv)
	do("context|set|web|-s|vm2|--format|json", 0, `{
  "contexts": [
    {
      "name": "farm",
      "current": false,
      "fleet": "`+url+`",
      "where": "name=vm2"
    },
    {
      "name": "web",
      "current": true,
      "socket": "vm2"
    }
  ]
}
`, "")
	do("list|-q", 0, "kprobes/myread\nkprobes/own2\n", "")
	do("context|use|--none", 0, "", "No context is the current one.\n")
	do("list", 2, "", "guestprobe: 2 daemons run on this machine (vm1, vm2): choose one with -s NAME\n"+hint("list"))
	do("context|remove|farm", 0, "", "Removed context farm.\n")
	do("context|list|--format|{{.Name}}", 0, "web\n", "")

	// A file that others can write, or a damaged one, is an error.
	if err := os.Chmod(path, 0o622); err != nil {
		t.Fatal(err)
	}
	do("list", 1, "", "guestprobe: contexts: other users can write "+path+" (mode 0622): chmod 600 it\n")
	do("-s|vm1|list|-q", 0, "kprobes/myread\nkprobes/own1\n", "")
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", `{"contexts":[{"nmae":"x"}]}`, strings.Repeat(" ", maxContexts+1)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := runIn(t, env, "list"); got.status != 1 || !strings.HasPrefix(got.errs, "guestprobe: contexts: "+path+": ") {
			t.Errorf("%.30q: status %d: %s", text, got.status, got.errs)
		}
	}
	// A debugger's monitor must not read files.
	var out bytes.Buffer
	if status := Program().Run(t.Context(), command.Env{Args: []string{"--context", "web", "list"}, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }, Only: monitored}); status != 2 || !strings.Contains(out.String(), "--context: there are no files here") {
		t.Errorf("monitor: status %d: %s", status, &out)
	}
}
