package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

// printJSON writes v, the daemon's own answer, indented.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.env.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// table writes rows under a heading, in columns.
func (a *app) table(heading []string, rows [][]string) error {
	tw := tabwriter.NewWriter(a.env.Stdout, 0, 8, 2, ' ', 0)
	if !a.noHeaders {
		fmt.Fprintln(tw, strings.Join(heading, "\t"))
	}
	for _, r := range rows {
		for i := range r {
			r[i] = clean(inCell.Replace(r[i]))
		}
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(r, "\t"), "\t"))
	}
	return tw.Flush()
}

// inCell keeps a cell on its line and in its column.
var inCell = strings.NewReplacer("\n", `\n`, "\t", `\t`)

// clean makes text that comes from the guest fit for a terminal: whatever
// could move the cursor or change colours is written as \xNN. Newlines and tabs
// stay.
func clean(s string) string {
	ok := true
	for _, r := range s {
		ok = ok && (r == '\n' || r == '\t' || r != utf8.RuneError && unicode.IsPrint(r))
	}
	if ok {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '\n' || r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1):
			b.WriteString(s[i : i+n])
		default:
			for _, c := range []byte(s[i : i+n]) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		}
		i += n
	}
	return b.String()
}

// colors reports whether output to w is to be coloured.
func (a *app) colors(w io.Writer) bool {
	switch a.color {
	case "always":
		return true
	case "never":
		return false
	}
	return a.env.Getenv("NO_COLOR") == "" && a.env.Getenv("TERM") != "dumb" && terminal(w)
}

// terminal reports whether w is a character device that is not /dev/null.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(st, null)
}

// paint is text in a colour of the terminal's palette (ECMA-48, SGR).
func paint(on bool, sgr, text string) string {
	if !on {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}

// Colours.
const (
	sgrDim  = "2"
	sgrBold = "1"
	sgrGood = "32"
	sgrBad  = "31"
	sgrName = "36"
)
