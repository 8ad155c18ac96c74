package linuxtest

import (
	"maps"
	"slices"
	"strings"
)

// round waits for a round of load.sh that begins from now on, and returns the answers of
// its stages.
func (g *Guest) round() map[string]string {
	g.t.Helper()
	for len(g.lines.C()) > 0 {
		g.line("an earlier line")
	}
	g.await("ROUND ") // of the round under way
	answers := make(map[string]string)
	for {
		line := g.line("a line of load.sh")
		if rest, ok := strings.CutPrefix(line, "LOAD "); ok {
			stage, answer, _ := strings.Cut(rest, " ")
			answers[stage] = answer
		} else if strings.HasPrefix(line, "ROUND ") {
			return answers
		}
	}
}

// checkSame fails the test, and names the stages that differ, unless the results
// are the expected ones.
func (g *Guest) checkSame(got, want map[string]string, when string) {
	g.t.Helper()
	for _, stage := range slices.Sorted(maps.Keys(want)) {
		if got[stage] != want[stage] {
			g.t.Errorf("%s: stage %s of the load answers %q, unprobed %q", when, stage, got[stage], want[stage])
		}
	}
}

// Command has commands.sh run a line of shell, and returns its output. The test
// fails if the line does.
func (g *Guest) Command(line string) (out []string) {
	g.t.Helper()
	g.Type(line + "\n")
	for {
		l := g.line("the end of " + line)
		if status, ok := strings.CutPrefix(l, "ANSWERED "); ok {
			if status != "0" {
				g.t.Errorf("%s: status %s\n%s", line, status, strings.Join(out, "\n"))
			}
			return out
		}
		out = append(out, l)
	}
}
