package cli

import (
	"bufio"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// totalsLine is the first line of a trace's totals, with the counts and the reason.
var totalsLine = regexp.MustCompile(`^# (\d+) events?: (\d+) shown(?:, (\d+) more not shown)?, (\d+) lost(?:; \d+ late)? \((\w+)\)$`)

// cmdCloses checks the totals of a saved trace of its own kprobes, as text or JSON:
// they must match the trace's lines, have this reason, and add up to the probes'
// handled hits:
//
//	closes trace.out interrupted
func cmdCloses(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: closes file reason")
	}
	var shown, lost, handled uint64 // counted from the lines
	var end api.End
	lines := bufio.NewScanner(strings.NewReader(ts.ReadFile(args[0])))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		var r api.Record
		switch {
		case end.Reason != "" && strings.HasPrefix(line, "# kprobes/"):
			n := regexp.MustCompile(` (\d+) handled`).FindStringSubmatch(line)
			if n == nil {
				ts.Fatalf("totals: %q", line)
			}
			handled += count(ts, n[1])
		case end.Reason != "":
			ts.Fatalf("behind the end: %q", line)
		case strings.HasPrefix(line, "{"):
			ts.Check(json.Unmarshal([]byte(line), &r))
			switch r.Type {
			case api.RecordHit:
				shown++
			case api.RecordLost:
				var l api.Lost
				ts.Check(json.Unmarshal(r.Data, &l))
				lost += l.Lost
			case api.RecordEnd:
				ts.Check(json.Unmarshal(r.Data, &end))
				for _, p := range end.Probes {
					handled += p.Stats.Handled
				}
			}
		case strings.HasPrefix(line, "[LOST "):
			lost += count(ts, strings.Fields(line)[1])
		case totalsLine.MatchString(line):
			f := totalsLine.FindStringSubmatch(line)
			end = api.End{Lost: count(ts, f[4]), Reason: f[5]}
			if f[3] != "" {
				end.Unshown = count(ts, f[3])
			}
			if end.Delivered = count(ts, f[2]) + end.Unshown; count(ts, f[1]) != end.Delivered+end.Lost {
				ts.Fatalf("totals: %q", line)
			}
		case !strings.HasPrefix(line, "#"):
			shown++
		}
	}
	ts.Check(lines.Err())
	if end.Reason != args[1] || end.Delivered != shown+end.Unshown || end.Lost != lost || handled == 0 && end.Reason != endTimeout || end.Delivered+lost != handled {
		ts.Fatalf("%d lines, %d lost, %d handled; the totals are %+v", shown, lost, handled, end)
	}
	ts.Logf("%d shown, %d unshown, %d lost: %d handled", shown, end.Unshown, lost, handled)
}

func count(ts *testscript.TestScript, s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	ts.Check(err)
	return n
}
