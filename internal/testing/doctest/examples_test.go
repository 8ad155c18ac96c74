package doctest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// TestExamples runs the examples of guestprobe's help, as docs/cli.md has them, each on
// what it takes to be there.
func TestExamples(t *testing.T) {
	t.Parallel()
	kvmtest.Require(t)
	dir := objects(t, ".")
	first, err := os.ReadFile(filepath.Join(example, "first.elf"))
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join(root, "docs/examples/latency.bt"))
	if err != nil {
		t.Fatal(err)
	}
	trace, err := os.ReadFile(filepath.Join(root, "internal/show/timeline/testdata/trace.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "tests"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"tests/reads.bt": "kprobe:vfs_read { exit(); }\n",
		"latency.bt":     string(script), "t.ndjson": string(trace),
		"probes.txt": "p:first vfs_read\n# and one more\np:second do_fork\n", "program.hex": "b7 00 00 00 2a 00 00 00 95 00 00 00 00 00 00 00\n", "guest.elf": string(first),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	todo := []step{
		{where: "examples", command: "guestprobe fleet serve --listen 127.0.0.1:0 --store fleet --url-file url &"},
		{where: "examples", command: "guestprobed --vcpus 2 --tick 100ms --fleet $(cat url) --fleet-creds fleet/creds --label kernel=6.1.1 &"},
	}
	seen, changed := 0, true
	for i, line := range strings.Split(documents(t)["docs/cli.md"], "\n") {
		line, ok := strings.CutPrefix(line, "      ")
		if !ok || !regexp.MustCompile(`^(echo .* \| )?guestprobe `).MatchString(line) {
			continue
		}
		if file := regexp.MustCompile(` (/(boot|lib)/\S+)`).FindStringSubmatch(line); file != nil {
			if _, err := os.Stat(file[1]); err != nil {
				continue // another machine has it
			}
		}
		if strings.HasPrefix(line, "guestprobe fleet serve") {
			continue // it serves until Ctrl-C, as the one of these examples does
		}
		if strings.HasPrefix(line, "guestprobe tasks") {
			continue // a Linux guest has them, and boots in an emulated machine only
		}
		// Those that attach begin with nothing, others with what the document names.
		before, attaches := "", regexp.MustCompile(`^guestprobe (attach|apply|trace 'p)`).MatchString(line)
		switch {
		case attaches:
			before = "guestprobe detach --all"
		case changed:
			before = "guestprobe detach --all; guestprobe attach 'p:myread vfs_read fd=%di count=%dx:u64' 'p:io/a do_fork' 'p:io/b schedule+4'; " +
				"guestprobe attach --program count.o; guestprobe attach --program latency.o"
		}
		if before != "" {
			todo = append(todo, step{where: "before", command: "{ " + before + "; } >/dev/null"})
		}
		stepped := regexp.MustCompile(`^guestprobe (step|next|finish|until)\b`).MatchString(line)
		if stepped {
			todo = append(todo, step{where: "before", command: "{ guestprobe guest reset --paused; guestprobe until do_fork --timeout 1m; } >/dev/null"})
		}
		if regexp.MustCompile(`^guestprobe (script|stop) `).MatchString(line) {
			todo = append(todo, step{where: "before", command: "guestprobe stop reads >/dev/null 2>&1; guestprobe run --detach reads -e 'kprobe:vfs_read { @ = hist(arg2); }' >/dev/null"})
		}
		changed = attaches || strings.Contains(line, "detach") || strings.Contains(line, "apply")
		seen++
		// A number of a probe, jq, an end by Ctrl-C and a quick machine are not to be had here.
		command, _, _ := strings.Cut(line, " | jq ")
		command = strings.NewReplacer("'io/*' 7", "'io/*' myread", "trace 'p", "trace -c 1 'p", "--timeout 5s", "", "script --follow", "script", "call ", "call --timeout 1m ",
			"--fleet nats://farm:4222", "--fleet $(cat url) --fleet-creds fleet/creds", "--expect 3", "--expect 1").Replace(command)
		todo = append(todo, step{where: fmt.Sprintf("docs/cli.md:%d", i+1), command: command})
		if stepped {
			todo = append(todo, step{where: "behind", command: "guestprobe guest resume >/dev/null"})
		}
	}
	if seen < 30 {
		t.Errorf("only %d examples were found", seen)
	}
	play(t, dir, todo, numbers)
}
