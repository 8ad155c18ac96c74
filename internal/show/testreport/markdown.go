package testreport

import (
	"fmt"
	"html"
	"io"
	"strings"
)

// Bounds of a summary: GitHub accepts at most 1 MiB.
const (
	maxTable        = 256 << 10 // where the next row is left out
	maxSummary      = 768 << 10 // where the next case's texts are
	maxMarkdownText = 4 << 10   // of each text, before it is escaped
)

// Markdown writes a summary in GitHub's Markdown: a table of all cases, and the
// texts of cases that have not passed.
func (r *Run) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n%s\n\n| | test | time | |\n|---|---|---|---|\n", markdown(line(r.Name, maxLine)), r.Summary())
	marks := map[Outcome]string{Passed: "✅", Failed: "❌", Errored: "⚠️", Skipped: "⏭️"}
	// The cases that readers look for come first, in case there is no room for
	// all.
	left := 0
	for _, want := range [][]Outcome{{Failed, Errored}, {Skipped, Passed}} {
		for _, c := range r.Cases {
			if c.Outcome != want[0] && c.Outcome != want[1] {
				continue
			}
			if b.Len() > maxTable {
				left++
				continue
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", marks[c.Outcome], markdown(line(c.Name, 128)), Seconds(c.Took), markdown(line(c.ShortWhy(), 256)))
		}
	}
	if left > 0 {
		fmt.Fprintf(&b, "\n%d more are not shown.\n", left)
	}
	left = 0
	for _, c := range r.Cases {
		if c.Outcome != Failed && c.Outcome != Errored {
			continue
		}
		if b.Len() > maxSummary {
			left++
			continue
		}
		fmt.Fprintf(&b, "\n<details><summary>%s</summary>\n\n", markdown(line(c.Name, 128)))
		for _, t := range []struct{ title, text string }{{"why", c.Why}, {"it printed", c.Output}, {"the guest's console", c.Console}} {
			if t.text != "" {
				fmt.Fprintf(&b, "%s:\n\n<pre>\n%s\n</pre>\n\n", t.title, pre(end(t.text, maxMarkdownText)))
			}
		}
		b.WriteString("</details>\n")
	}
	if left > 0 {
		fmt.Fprintf(&b, "\nThe texts of %d more are not shown.\n", left)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// markdown escapes a line of text for Markdown.
func markdown(text string) string {
	var b strings.Builder
	for i, r := range text {
		// :// and www. make a link.
		link := r == ':' && strings.HasPrefix(text[i:], "://") || r == '.' && strings.HasSuffix(strings.ToLower(text[:i]), "www")
		if link || strings.ContainsRune("\\`*_{}[]<>#|~&@$", r) {
			fmt.Fprintf(&b, "&#%d;", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// pre is text within <pre>, which ends at its tag alone.
func pre(text string) string { return html.EscapeString(strings.TrimRight(text, "\n")) }
