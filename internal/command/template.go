package command

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"text/template"
	"unicode"
)

// rowTemplate is a template from --format, such as '{{.Name}} {{.Hits}}', that prints one row.
type rowTemplate struct {
	tmpl    *template.Template
	table   bool   // print columns under a heading
	heading string // for a table
}

// isTemplate reports whether the value of --format is a template.
func isTemplate(format string) bool { return strings.Contains(format, "{{") }

// parseTemplate parses a template for rows of sample's type. As in docker, the prefix "table " makes
// it a table, and \t and \n are escapes.
func parseTemplate(text string, sample any) (*rowTemplate, error) {
	text, table := strings.CutPrefix(text, "table ")
	text = inTemplate.Replace(text)
	t, err := template.New("format").Option("missingkey=zero").Funcs(templateFuncs).Parse(text)
	if err != nil {
		return nil, Usagef("--format: %s", strings.TrimPrefix(err.Error(), "template: format:"))
	}
	if err := checkFields(t, reflect.TypeOf(sample)); err != nil {
		return nil, Usagef("--format: %w", err)
	}
	return &rowTemplate{tmpl: t, table: table, heading: headings(t.Root)}, nil
}

// inTemplate replaces escapes, which the shell leaves as they are.
var inTemplate = strings.NewReplacer(`\t`, "\t", `\n`, "\n")

// templateFuncs are docker's functions.
var templateFuncs = template.FuncMap{
	"json": func(v any) (string, error) {
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		err := enc.Encode(v)
		return strings.TrimSuffix(b.String(), "\n"), err
	},
	"join":  func(list []string, between string) string { return strings.Join(list, between) },
	"split": strings.Split,
	"lower": strings.ToLower,
	"upper": strings.ToUpper,
	"title": func(s string) string {
		r := []rune(s)
		if len(r) > 0 {
			r[0] = unicode.ToUpper(r[0])
		}
		return string(r)
	},
	"pad": func(s string, before, after int) string {
		return strings.Repeat(" ", clamp(before)) + s + strings.Repeat(" ", clamp(after))
	},
	"truncate": func(s string, n int) string {
		r := []rune(s)
		return string(r[:min(clamp(n), len(r))])
	},
}

// clamp limits a number of characters from a template.
func clamp(n int) int { return max(0, min(n, 1<<16)) }

// Templated reports whether to print rows with a template.
func (r *Run) Templated() bool { return r.template != nil }

// Tabled reports whether to print the rows in columns.
func (r *Run) Tabled() bool { return r.template != nil && r.template.table }

// Row prints one row with the template, and a newline. Text from the guest is made safe for
// a terminal.
func (r *Run) Row(w io.Writer, row any) error {
	var b strings.Builder
	if err := r.template.tmpl.Execute(&b, row); err != nil {
		text := err.Error()
		if _, at, ok := strings.Cut(text, `executing "format" at `); ok {
			text = at
		}
		if place, _, ok := strings.Cut(text, ": nil pointer evaluating"); ok {
			text = place + ": not every row has that: {{with}} asks whether one does"
		}
		return fmt.Errorf("--format: %s", text)
	}
	_, err := io.WriteString(w, Clean(b.String())+"\n")
	return err
}

// PrintRows prints all rows of a list with the template.
func PrintRows[T any](r *Run, rows []T) error {
	var w io.Writer = r.Stdout
	if r.Tabled() {
		tw := tabwriter.NewWriter(r.Stdout, 0, 8, 3, ' ', 0)
		if w = tw; r.Headings() {
			fmt.Fprintln(tw, r.template.heading)
		}
		defer tw.Flush()
	}
	for _, row := range rows {
		if err := r.Row(w, row); err != nil {
			return err
		}
	}
	return nil
}
