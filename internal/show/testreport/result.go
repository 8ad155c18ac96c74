package testreport

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/internal/command"
)

// Outcome is the outcome of a test.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"  // the tested behavior is wrong
	Errored Outcome = "error"   // it could not be run, or not to its end
	Skipped Outcome = "skipped" // it was not run
)

// Case is a test that was run. Its text may come from the guest: no text can
// break the reports.
type Case struct {
	Name    string        `json:"name"`
	File    string        `json:"file"`
	Outcome Outcome       `json:"outcome"`
	Kind    string        `json:"kind,omitempty"` // the kind of failure, a word
	Why     string        `json:"why,omitempty"`  // a sentence, perhaps followed by lines
	Took    time.Duration `json:"-"`
	Output  string        `json:"output"`         // the test's output, or its end
	Console string        `json:"console"`        // the guest's, or its end
	Kept    string        `json:"kept,omitempty"` // folder with more data
}

// ShortWhy is the first line of Why.
func (c *Case) ShortWhy() string {
	short, _, _ := strings.Cut(c.Why, "\n")
	return short
}

// Run is all tests of one run.
type Run struct {
	Name  string // of the whole run
	Host  string
	Began time.Time
	Took  time.Duration
	Cases []Case
}

// Count returns how many cases have come out like that.
func (r *Run) Count(o Outcome) (n int) {
	for i := range r.Cases {
		if r.Cases[i].Outcome == o {
			n++
		}
	}
	return n
}

// Summary says in a line how the cases have come out.
func (r *Run) Summary() string {
	parts := []string{fmt.Sprintf("%d passed", r.Count(Passed))}
	for _, o := range []struct {
		outcome Outcome
		word    string
	}{{Failed, "failed"}, {Errored, "could not be run"}, {Skipped, "skipped"}} {
		if n := r.Count(o.outcome); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, o.word))
		}
	}
	return fmt.Sprintf("%s: %s, in %s", command.Plural(len(r.Cases), "test"), strings.Join(parts, ", "), Seconds(r.Took))
}

// Seconds writes a time as people read it.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.3fs", d.Seconds()) }

// end returns the end of a text, fit to be shown, in no more bytes than most.
func end(text string, most int) string {
	whole := len(text)
	text = command.Clean(lastOf(text, most)) // does not make it shorter
	if shown := lastOf(text, most); whole > most || len(shown) < len(text) {
		return "[...]\n" + shown
	}
	return text
}

// lastOf returns the end of a text, no more bytes than most.
func lastOf(text string, most int) string {
	from := max(len(text)-most, 0)
	for from > 0 && from < len(text) && !utf8.RuneStart(text[from]) {
		from++
	}
	return text[from:]
}

// line returns the beginning of a text as one line, of no more bytes than most.
// Three dots show that there is more.
func line(text string, most int) string {
	whole := len(text)
	text = command.Line(firstOf(text, most))
	if shown := firstOf(text, most); whole > most || len(shown) < len(text) {
		return shown + "..."
	}
	return text
}

// firstOf returns the beginning of a text, no more bytes than most.
func firstOf(text string, most int) string {
	to := min(len(text), most)
	for to > 0 && to < len(text) && !utf8.RuneStart(text[to]) {
		to--
	}
	return text[:to]
}
