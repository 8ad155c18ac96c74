package profile

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	pprof "github.com/google/pprof/profile"
)

// kernelMark follows the names of kernel functions in folded text, as in the
// output of perf's converters.
const kernelMark = "_[k]"

// inFolded replaces the characters that would end a name or its line.
var inFolded = strings.NewReplacer(";", ":", "\n", `\n`, "\r", `\r`, "\t", " ")

// WriteFolded writes a line for each stack: its functions from the outermost on,
// with semicolons between them, and its value. For two compared profiles it
// writes both values, the base's first.
func WriteFolded(w io.Writer, p *pprof.Profile, i int) error {
	type counts struct{ value, base int64 }
	all, compared := map[string]*counts{}, false
	for _, s := range p.Sample {
		var b strings.Builder
		for k, f := range frames(s) {
			if k > 0 {
				b.WriteByte(';')
			}
			inFolded.WriteString(&b, f.name)
			if f.kernel {
				b.WriteString(kernelMark)
			}
		}
		if b.Len() == 0 {
			b.WriteString(unknown)
		}
		c := all[b.String()]
		if c == nil {
			c = &counts{}
			all[b.String()] = c
		}
		v, base := value(s, i)
		if compared = compared || base; base {
			c.base += v
		} else {
			c.value += v
		}
	}
	lines := make([]string, 0, len(all))
	for stack := range all {
		lines = append(lines, stack)
	}
	slices.Sort(lines)
	out := bufio.NewWriter(w)
	for _, stack := range lines {
		if c := all[stack]; compared {
			fmt.Fprintf(out, "%s %d %d\n", stack, c.base, c.value)
		} else {
			fmt.Fprintf(out, "%s %d\n", stack, c.value)
		}
	}
	return out.Flush()
}
