package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
)

// commands calls f with the name of each command of a program that has an action.
func commands(name string, s *command.Spec, f func(string, *command.Spec)) {
	if s.Run != nil {
		f(name, s)
	}
	for i := range s.Sub {
		commands(strings.TrimSpace(name+" "+strings.Fields(s.Sub[i].Use)[0]), &s.Sub[i], f)
	}
}

// TestMonitored: each command is allowed in a debugger's "monitor", or works with local files or
// programs; and each flag with a file as its value is in Spec.Files.
func TestMonitored(t *testing.T) {
	local := []string{"analyze", "apply", "bpf check", "bpf exec", "check", "context list", "context remove", "context set", "context use", "convert", "demo", "doctor", "fleet init", "fleet ls", "fleet report", "fleet serve", "gdb", "guest save", "ps", "report", "top", "vms", "web"}
	p := Program()
	var seen []string
	named := regexp.MustCompile("`(?i:file|path|program|PATH=COPY|directory|folder|URL|VM)`")
	files := func(name string, declare func(*pflag.FlagSet), known []string) {
		set := pflag.NewFlagSet(name, pflag.ContinueOnError)
		if declare != nil {
			declare(set)
		}
		set.VisitAll(func(f *pflag.Flag) {
			if named.MatchString(f.Usage) != slices.Contains(known, f.Name) {
				t.Errorf("%s --%s: a file or an address by its help, or by Spec.Files, but not both", name, f.Name)
			}
		})
		for _, f := range known {
			if set.Lookup(f) == nil {
				t.Errorf("%s has no --%s", name, f)
			}
		}
	}
	files("guestprobe", p.Global, p.Files)
	commands("", &p.Spec, func(name string, s *command.Spec) {
		if s.AliasOf != "" { // allowed if the command itself is
			return
		}
		seen = append(seen, name)
		if slices.Contains(local, name) == slices.Contains(monitored, name) {
			t.Errorf("%s: for a debugger's monitor or not", name)
		}
		files(name, s.Flags, s.Files)
	})
	for _, name := range append(local, monitored...) {
		if !slices.Contains(seen, name) {
			t.Errorf("there is no command %s", name)
		}
	}
}

// TestMonitorHasNoFiles: users of the monitor do not get the daemon's rights on the host.
func TestMonitorHasNoFiles(t *testing.T) {
	dir := t.TempDir()
	made, secret := filepath.Join(dir, "made"), filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const notHere = "cannot be used here"
	for line, want := range map[string]string{
		"gdb --gdb '" + secret + "'":                    notHere,
		"gdb -- --batch -ex 'shell touch " + made + "'": notHere,
		"guest save " + made:                            notHere,
		"apply " + secret:                               notHere,
		"apply -":                                       notHere,
		"bpf check " + secret:                           notHere,
		"demo":                                          notHere,
		"run " + secret:                                 "there are no files here",
		"run -":                                         "there are no files here",
		"run -e 'import \"" + secret + "\"; BEGIN { }'":      "there are no files here: the script cannot import any",
		"run -e 'BEGIN { }' -o " + made:                      "--output: there are no files here",
		"run -e 'BEGIN { }' --output=" + made:                "--output: there are no files here",
		"trace --format ftrace -c 1":                         "--format ftrace: there are no files here",
		"trace -o " + made:                                   "--output: there are no files here",
		"tool --output " + made + " opensnoop":               "--output: there are no files here",
		"profile --read " + secret:                           "--read: there are no files here",
		"profile --diff " + secret:                           "--diff: there are no files here",
		"guest reset --to " + secret:                         "--to: there are no files here",
		"attach --program " + secret:                         "--program: there are no files here",
		"attach --file /a=" + secret + " 'p /a:f'":           "--file: there are no files here",
		"disas --image " + secret + " main":                  "--image: there are no files here",
		"--core " + secret + " regs":                         "--core: there are no files here",
		"-s " + secret + " list":                             "--socket: there are no files here",
		"list -s " + secret:                                  "--socket: there are no files here",
		"__complete -s " + secret + " detach ''":             "--socket: there are no files here",
		"__complete __completeNoDesc -s " + secret + " list": "--socket: there are no files here",
	} {
		var out bytes.Buffer
		err := Monitor(t.Context(), filepath.Join(dir, "s"), line, &out)
		if err == nil || !strings.Contains(out.String(), want) || strings.Contains(out.String(), "s3cret") {
			t.Errorf("%s: %v, %q; want %q", line, err, &out, want)
		}
	}
	if _, err := os.Stat(made); err == nil {
		t.Error("a file was written")
	}
}
