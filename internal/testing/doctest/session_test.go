package doctest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// step is a command of a document and what it is shown to say.
type step struct {
	where, command string
	want           []string
}

// parseSteps takes a session apart: commands are behind "$ ", go on behind "\", and are
// followed by their output.
func parseSteps(doc string, line int, text string) (out []step) {
	more := false
	for i, s := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		command, is := strings.CutPrefix(s, "$ ")
		switch {
		case is:
			out = append(out, step{where: fmt.Sprintf("%s:%d", doc, line+i), command: command})
		case more:
			out[len(out)-1].command += "\n" + s
		default:
			out[len(out)-1].want = append(out[len(out)-1].want, s)
		}
		more = (is || more) && strings.HasSuffix(s, `\`)
	}
	return out
}

// sessions returns the steps of all blocks of a document that the language
// console is written at, in order; before each that does not continue another one
// comes between. A block with a file's name after its language is that file. Programs in
// Go are TestFirstProgram's.
func sessions(t *testing.T, doc, between string) (out []step) {
	t.Helper()
	for _, b := range blocks(t, doc) {
		if _, file, _ := strings.Cut(b.info, " "); strings.Contains(file, ".") {
			out = append(out, step{where: fmt.Sprintf("%s:%d", b.doc, b.line), command: fmt.Sprintf("cat >%s <<'END'\n%sEND", file, b.text)})
			continue
		}
		if !strings.HasPrefix(b.info, "console") || strings.Contains(b.text, "$ go ") {
			continue
		}
		if between != "" && b.info != "console continued" {
			out = append(out, step{where: fmt.Sprintf("before %s:%d", b.doc, b.line), command: between})
		}
		out = append(out, parseSteps(b.doc, b.line, b.text)...)
	}
	if len(out) == 0 {
		t.Fatalf("%s has no session", doc)
	}
	return out
}

// bin is where what ships is built, once.
var bin string

func TestMain(m *testing.M) {
	var err error
	if bin, err = os.MkdirTemp("", "gp"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(bin)
	os.Exit(code)
}

var programs = sync.OnceValue(func() error {
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, "./cmd/guestprobe", "./cmd/guestprobed", "./cmd/guestprobe-fleetd")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
})

// play runs the steps by one shell in dir and compares what they say, but for what
// vary matches. A step that ends in & is a daemon or a trace; the next one comes
// when it is ready. A step that looks at the guest for some seconds looks for a part
// of one first, which is enough on most machines; where it is not, the step is run as
// the document has it, and then ten times as long.
func play(t *testing.T, dir string, todo []step, vary *regexp.Regexp) {
	t.Helper()
	if err := programs(); err != nil {
		t.Fatal(err)
	}
	// A test's own directory may have too long a path for a socket.
	short, err := os.MkdirTemp("", "gp")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(short)
	cmd := exec.CommandContext(patience.Context(t), "bash")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GUESTPROBE_SOCKET="+filepath.Join(short, "s"), "PATH="+bin+":"+os.Getenv("PATH"), "XDG_CONFIG_HOME="+filepath.Join(dir, ".config"), "COLUMNS=")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		io.Copy(io.Discard, pipe)
		if err := cmd.Wait(); err != nil {
			t.Logf("%v", err)
		}
	}()
	out := bufio.NewReader(pipe)
	fmt.Fprint(in, "exec 2>&1\ntrap 'kill $(jobs -p); wait' EXIT\n")
	for i, s := range todo {
		command := strings.ReplaceAll(s.command, "/tmp/gp.sock", filepath.Join(short, "s"))
		if job, background := strings.CutSuffix(command, " &"); background {
			log := fmt.Sprintf("%s/%d", short, i)
			command = fmt.Sprintf("%s >%s 2>&1 &\nuntil grep -qs -e msg=ready -e ^Tracing -e ^Serving %s; do kill -0 $! || break; sleep 0.01; done", job, log, log)
		}
		wrong := ""
		for _, command := range slices.Compact([]string{shorten(command), command, longer(command)}) {
			fmt.Fprintf(in, "%s\nprintf '\\n\\001%%d\\n' $?\n", command)
			said, err := out.ReadString(1)
			status, err2 := out.ReadString('\n')
			if err != nil || err2 != nil {
				t.Fatalf("%s: %s did not end; it said:\n%s", s.where, s.command, said)
			}
			if wrong = judge(s, strings.TrimSuffix(said, "\n\x01"), strings.TrimSpace(status), vary); wrong == "" {
				break
			}
		}
		if wrong != "" {
			t.Error(wrong)
		}
	}
}

// windows are the durations that a command line gives.
var windows = regexp.MustCompile(`( -d | --duration | --interval |interval:(?:s|ms):)(\d+)(ms|s)?( \{ exit\(\); \}|\b)`)

// shorten is a command that looks at the guest for a quarter of the time, or of a
// second where it prints once.
func shorten(command string) string {
	if strings.HasPrefix(command, "guestprobe top ") && !strings.Contains(command, "--interval") {
		command += " --interval 1s"
	}
	return windows.ReplaceAllStringFunc(command, func(w string) string {
		m := windows.FindStringSubmatch(w)
		n, err := strconv.Atoi(m[2])
		if err != nil {
			return w
		}
		switch {
		case m[1] == "interval:s:" && m[4] != "":
			return fmt.Sprintf("interval:ms:%d%s", n*250, m[4])
		case strings.HasPrefix(m[1], "interval:") || m[3] == "":
			return w
		case m[3] == "s":
			n *= 1000
		}
		if !strings.Contains(command, "--interval") {
			n = min(n, 1000)
		}
		return fmt.Sprintf("%s%dms", m[1], n/4)
	})
}

// longer is a command that looks at the guest for ten times as long: on a busy machine the guest may do nothing for a second.
func longer(command string) string {
	return windows.ReplaceAllStringFunc(command, func(w string) string {
		m := windows.FindStringSubmatch(w)
		if n, err := strconv.Atoi(m[2]); err == nil && (m[1] == " -d " || m[1] == " --duration " || m[1] == "interval:s:" && m[4] != "") {
			return fmt.Sprintf("%s%d%s%s", m[1], 10*n, m[3], m[4])
		}
		return w
	})
}

// judge returns what is wrong with what a step has said, and with its exit status.
func judge(s step, said, status string, vary *regexp.Regexp) string {
	failed := slices.ContainsFunc(s.want, func(line string) bool { return strings.HasPrefix(line, "guestprobe: ") })
	if code, err := strconv.Atoi(status); err != nil || (code != 0) != failed {
		return fmt.Sprintf("%s: exit status %s of %s, which said:\n%s", s.where, status, s.command, said)
	}
	return compare(s, strings.Split(strings.TrimRight(said, "\n"), "\n"), vary)
}

// calls is the table of calls that have not returned, which detach and list show while there are some.
const calls = `^NAME +HANDLED +RETURNED +ABANDONED +UNDER-WAY$|^\w+/\w+ +\d+ +\d+ +\d+ +\d+$`

var (
	hits = regexp.MustCompile(`^ *\S+-\d+ +\[\d{3}\] [a-zA-Z.]{5} +\d+\.\d{6}: `)
	// What differs from run to run, and what by compilers and their hosts.
	numbers = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT[\d:.]+([+-][\d:]+|Z)|\b([0-9a-f]{10}|[0-9a-f]{16}|[0-9a-f]{64}|[0-9a-f]{128})\b|-?\b(0x[0-9a-f]+|\d+(\.\d+)?(us|µs|ms|s)?)\b`)
	places  = regexp.MustCompile(`\b[0-9a-f]{16}\b|\b0x[0-9a-f]+\b|\b\d+\.\d+(us|ms|s)\b`)
	// What differs by when a command comes, and by who came first: the caller that
	// a function returns to, where a vCPU was, the task.
	who = regexp.MustCompile(`\w+\+0x[0-9a-f]+(/0x[0-9a-f]+ <-|  +0x[0-9a-f]+$)|"(retSymbol|comm)":"[^"]*"`)
	// Rows of histograms, of which there are more or fewer.
	rows = regexp.MustCompile(`^(\(\.\.\.|\[-?\d+[KMGTPE]?)(, (-?\d+[KMGTPE]?|\.\.\.))?[])] +\d+ \|@* *\|$`)
	// What was read and not shown, which is more on a busy machine.
	unshown = regexp.MustCompile(`; \d+ not shown when it was saved`)
	// What a busy machine loses or misses.
	losses = regexp.MustCompile(`^(\[LOST |[Mm]issed \d|Lost \d)|` + calls)
	states = regexp.MustCompile(`\b(waiting|jump|host|guest|running|idle|parked)\b|\[OPTIMIZED\]`)
)

// shape is a line without what differs, and whether it is that of a hit.
func shape(line string, vary *regexp.Regexp) (string, bool) {
	line = unshown.ReplaceAllString(strings.Replace(line, " [LATE]", "", 1), "")
	if rows.MatchString(line) {
		return "ROW", false
	}
	hit := hits.MatchString(line)
	line = hits.ReplaceAllString(line, "HIT ")
	line = who.ReplaceAllString(strings.ReplaceAll(line, "[OPTIMIZED][", "["), "~")
	words := strings.Fields(states.ReplaceAllString(vary.ReplaceAllString(line, "~"), " ~ "))
	for i, w := range words {
		if w == "-" {
			words[i] = "~"
		}
	}
	return strings.Join(words, " "), hit
}

// compare wants the lines of the document, where it has any: of hits as many, each
// of a kind that is shown; of others the same, in their order, with "..." for any
// number, be it none, and of lines that only numbers tell apart any number too. Headers
// and ends of traces, which begin with #, are the trace's tests', and so are the marks
// of what a busy machine loses or has late. Other hosts than
// the one that the documents were written on have other plans and reasons. It returns
// what differs.
func compare(s step, said []string, vary *regexp.Regexp) string {
	if kvmtest.DetectHost() != kvmtest.HostPVM || len(s.want) == 0 {
		return ""
	}
	part := func(lines []string) (seen, other []string) {
		for _, line := range lines {
			text, hit := shape(line, vary)
			switch {
			case hit:
				seen = append(seen, text)
			case text != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "Tracing ") && !losses.MatchString(line):
				other = append(other, text)
			}
		}
		if !slices.Contains(s.want, "...") { // the order matters where lines are left out
			sortElements(other)
		}
		return seen, slices.Compact(other)
	}
	wantHits, want := part(s.want)
	gotHits, got := part(said)
	bad := len(gotHits) != len(wantHits)
	for _, line := range gotHits {
		bad = bad || !slices.Contains(wantHits, line)
	}
	pattern := regexp.QuoteMeta(strings.Join(want, "\n"))
	for _, dots := range [][2]string{{"\n\\.\\.\\.\n", `\n(?s:.*\n)?`}, {"\n\\.\\.\\.", `(?s:\n.*)?`}, {"\\.\\.\\.", `(?s:.*)`}} {
		pattern = strings.ReplaceAll(pattern, dots[0], dots[1])
	}
	if bad || !regexp.MustCompile("^"+pattern+"$").MatchString(strings.Join(got, "\n")) {
		return fmt.Sprintf("%s: %s says\n%s\nwhere the document has\n%s", s.where, s.command, strings.Join(said, "\n"), strings.Join(s.want, "\n"))
	}
	return ""
}

// element matches an element of a script's map.
var element = regexp.MustCompile(`^@\w*\[.*\]: `)

// sortElements sorts elements of maps that follow one another. A script prints them by their values, which differ between two runs.
func sortElements(lines []string) {
	for i := 0; i < len(lines); i++ {
		n := 0
		for i+n < len(lines) && element.MatchString(lines[i+n]) {
			n++
		}
		slices.Sort(lines[i : i+n])
		i += n
	}
}

// TestTour does what the README's tour does, in a directory with the repository's
// docs/examples and nothing else.
func TestTour(t *testing.T) {
	t.Parallel()
	kvmtest.Require(t)
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "docs/examples"), os.DirFS(root+"/docs/examples")); err != nil {
		t.Fatal(err)
	}
	play(t, dir, sessions(t, "README.md", ""), numbers)
}

// TestStart does what the tutorials show, each in an empty directory. TestGuest has own-guest.md, and make test-linux
// Linux guests.
func TestStart(t *testing.T) {
	kvmtest.Require(t)
	for _, doc := range []string{"first-trace", "ci", "debugging"} {
		t.Run(doc, func(t *testing.T) {
			t.Parallel()
			play(t, t.TempDir(), sessions(t, "docs/start/"+doc+".md", ""), numbers)
		})
	}
}

// TestSessions does what documents show of the command line, with a daemon that has
// the built-in guest.
func TestSessions(t *testing.T) {
	kvmtest.Require(t)
	for _, doc := range []string{"definitions", "programs", "scripts", "tools", "handlers", "optimization", "debugging", "see"} {
		t.Run(doc, func(t *testing.T) {
			t.Parallel()
			todo := []step{{where: doc, command: "guestprobed --vcpus 2 --tick 100ms &"}}
			todo = append(todo, sessions(t, "docs/"+doc+".md", "guestprobe detach --all; guestprobe guest resume; guestprobe optimization on")...)
			play(t, objects(t, "."), todo, numbers)
		})
	}
}

// objects returns a directory with what the example programs are compiled to, in
// this place below it.
func objects(t *testing.T, place string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, place), os.DirFS(root+"/probe/bpf/testdata/obj")); err != nil {
		t.Fatal(err)
	}
	return dir
}
