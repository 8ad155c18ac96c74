package testreport

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// maxTAPText bounds the text of one case in TAP, in bytes.
const maxTAPText = 8 << 10

// tapEscapes escapes characters with a meaning in a description of TAP: # begins
// a directive.
var tapEscapes = strings.NewReplacer(`\`, `\\`, "#", `\#`)

// TAP writes the run in the Test Anything Protocol, version 13. Details of a
// failure are YAML, with strings written as JSON, which is valid YAML.
func (r *Run) TAP(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "TAP version 13\n1..%d\n", len(r.Cases))
	for i, c := range r.Cases {
		ok := "ok"
		if c.Outcome == Failed || c.Outcome == Errored {
			ok = "not ok"
		}
		fmt.Fprintf(&b, "%s %d - %s", ok, i+1, tapEscapes.Replace(line(c.Name, maxLine)))
		if c.Outcome == Skipped {
			fmt.Fprintf(&b, " # SKIP %s", tapEscapes.Replace(line(c.ShortWhy(), maxLine)))
		}
		b.WriteString("\n  ---\n")
		for _, f := range []struct{ key, text string }{
			{"message", line(c.ShortWhy(), maxLine)}, {"severity", tapSeverity(c.Outcome)}, {"kind", c.Kind}, {"file", line(c.File, maxLine)},
			{"output", end(c.Output, maxTAPText)}, {"console", end(c.Console, maxTAPText)}, {"kept", line(c.Kept, maxLine)},
		} {
			if f.text == "" {
				continue
			}
			text, err := json.Marshal(f.text)
			if err != nil {
				return fmt.Errorf("tap: %w", err)
			}
			fmt.Fprintf(&b, "  %s: %s\n", f.key, text)
		}
		fmt.Fprintf(&b, "  duration_ms: %.3f\n  ...\n", float64(c.Took.Microseconds())/1000)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func tapSeverity(o Outcome) string {
	switch o {
	case Failed:
		return "fail"
	case Errored:
		return "error"
	}
	return ""
}
