package http

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/guestprobe/guestprobe/internal/testing/scripttest"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

var (
	bpftraceRoot = flag.String("bpftrace", "", "folder with bpftrace and its libraries, as a root: it runs the scripts, and what it prints is kept")
)

// Scripts, and what bpftrace has printed of them: scripts/bpftrace.sh makes the latter.
const (
	bpftraceScripts = "../../../testdata/bpftrace/scripts.txtar"
	bpftraceGolden  = "../../../testdata/bpftrace/golden.txtar"
	bpftraceDiffer  = "../../../testdata/bpftrace/differ.txtar" // a row of the document, and what ours prints
)

// scriptRun is what a script has done.
type scriptRun struct {
	out    string
	err    string // first error, as FILE:LINE:COLUMNS: ERROR: MESSAGE
	status int64
}

func (r scriptRun) String() string {
	return fmt.Sprintf("status %d %s\n%s", r.status, r.err, r.out)
}

// wholeScript is a script of the comparison.
type wholeScript struct{ name, text string }

// bpftraceCorpus are the scripts that are compared.
func bpftraceCorpus(t *testing.T) (ss []wholeScript) {
	a, err := txtar.ParseFile(bpftraceScripts)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range a.Files {
		ss = append(ss, wholeScript{f.Name, string(f.Data)})
	}
	for seed := range uint64(randomScripts) {
		ss = append(ss, wholeScript{fmt.Sprintf("%s%d", randomName, seed), scripttest.New(seed, scripttest.Options{Place: "BEGIN", Portable: true}).Text})
	}
	return ss
}

// So many scripts are made up at random, of what is no known difference but for the order of
// elements with equal values.
const randomScripts, randomName = 40, "random-"

// sortMaps puts the lines of the maps of a random script in an order.
func sortMaps(name, out string) string {
	printed, maps, ok := strings.Cut(out, "\n\n\n")
	if !ok || !strings.HasPrefix(name, randomName) {
		return out
	}
	lines := strings.Split(maps, "\n")
	slices.Sort(lines)
	return printed + "\n\n\n" + strings.Join(lines, "\n")
}

// firstError is the first line that tells an error.
var firstError = regexp.MustCompile(`(?m)^\S+:\d+:\d+(-\d+)?: ERROR: .*$`)

// notSupported is what a script that is refused by name says.
var notSupported = regexp.MustCompile(`(?m)ERROR: .* (is|are) not supported$|is known when it is printed`)

var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// runBpftrace runs a script in the real bpftrace.
func runBpftrace(t *testing.T, args ...string) (r scriptRun) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "chroot", append([]string{*bpftraceRoot, "/usr/bin/bpftrace"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	r.out, r.err, r.status = out.String(), firstError.FindString(colours.ReplaceAllString(errs.String(), "")), int64(cmd.ProcessState.ExitCode())
	t.Logf("bpftrace: %v\n%s%s", err, colours.ReplaceAllString(errs.String(), ""), &out)
	return r
}

// runOurs runs a script in the daemon, as guestprobe run does.
func runOurs(h *harness, text string) (r scriptRun) {
	s, err := h.c.RunScript(h.ctx, api.RunScript{Script: text})
	var refused *api.Error
	if errors.As(err, &refused) {
		return scriptRun{err: firstError.FindString(refused.Message), status: 1}
	} else if err != nil {
		h.Fatal(err)
	}
	defer s.Close()
	next[api.Start](h, s, api.RecordStart)
	out, warnings, end := h.readRest(s)
	r.err = firstError.FindString(strings.Join(warnings, "\n"))
	if r.out = out; end.Code != nil {
		r.status = *end.Code
	}
	return r
}

// archive reads files that are in one, by name; without it there are none.
func archive(t *testing.T, name string) (comment string, files map[string]string) {
	a, err := txtar.ParseFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	files = map[string]string{}
	if a == nil {
		return "", files
	}
	for _, f := range a.Files {
		files[f.Name] = string(f.Data)
	}
	return string(a.Comment), files
}

// realBpftrace runs those scripts in the real bpftrace that it, in this version, has not
// run yet, and returns the archive of what it prints.
func realBpftrace(t *testing.T, scripts []wholeScript) *txtar.Archive {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	version := fmt.Sprintf("What %s on Linux %s prints: made by scripts/bpftrace.sh, last on ", strings.TrimSpace(runBpftrace(t, "--version").out), strings.TrimSpace(string(kernel)))
	comment, have := archive(t, bpftraceGolden)
	if !strings.HasPrefix(comment, version) {
		have = nil
	}
	a := &txtar.Archive{Comment: []byte(version + time.Now().UTC().Format(time.DateOnly) + ".\n")}
	for _, c := range scripts {
		out := have[c.name+".out"]
		if have[c.name] != c.text {
			out = runBpftrace(t, "-e", c.text).String()
		}
		a.Files = append(a.Files, txtar.File{Name: c.name, Data: []byte(c.text)}, txtar.File{Name: c.name + ".out", Data: []byte(out)})
	}
	return a
}

// TestBpftrace: scripts print what bpftrace prints, but for differences that are known, of
// which docs/scripts.md tells, and for what is refused by name.
func TestBpftrace(t *testing.T) {
	scripts := bpftraceCorpus(t)
	if *bpftraceRoot != "" {
		if err := os.WriteFile(bpftraceGolden, txtar.Format(realBpftrace(t, scripts)), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	_, golden := archive(t, bpftraceGolden)
	_, differ := archive(t, bpftraceDiffer)
	doc, err := os.ReadFile("../../../docs/scripts.md")
	if err != nil {
		t.Fatal(err)
	}
	h := serveFake(t, nil)
	refused := 0
	for _, c := range scripts {
		t.Run(c.name, func(t *testing.T) {
			h := *h
			h.T = t
			ours, theirs := sortMaps(c.name, runOurs(&h, c.text).String()), sortMaps(c.name, golden[c.name+".out"])
			why, want, known := strings.Cut(differ[c.name], "\n")
			switch {
			case golden[c.name] != c.text:
				t.Fatal("bpftrace has not run this script: scripts/bpftrace.sh does")
			case notSupported.MatchString(ours):
				refused++
			case known && ours == theirs:
				t.Error("no difference any more")
			case known && ours != want:
				t.Errorf("prints\n%s\nwant\n%s\nbpftrace prints\n%s", ours, want, theirs)
			case known && !strings.Contains(string(doc), "| "+why+" |"):
				t.Errorf("the document has no row %q", why)
			case !known && ours != theirs:
				t.Errorf("prints\n%s\nbpftrace prints\n%s", ours, theirs)
			}
		})
	}
	t.Logf("%d scripts, of which %d are refused and %d differ", len(scripts), refused, len(differ))
}
