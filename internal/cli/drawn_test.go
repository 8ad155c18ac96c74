package cli

import (
	"encoding/json"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdDrawn checks a file in Trace Event Format: it must be valid, and have this number of hits on the tracks of tasks
// (+: at least 1) and the same number on the tracks of vCPUs. Slices must be named after functions:
//
//	drawn trace.chrome.json 20
func cmdDrawn(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: drawn file hits|+")
	}
	var events []struct {
		Name, Ph, Cat string
		PID           int
		TS            float64
		Dur           *float64
	}
	if err := json.Unmarshal([]byte(ts.ReadFile(args[0])), &events); err != nil {
		ts.Fatalf("%s: %v", args[0], err)
	}
	tasks, cpus := 0, 0
	for _, e := range events {
		switch {
		case e.Ph == "M" || e.Cat == "guestprobe" || e.Ph == "C":
			continue
		case e.TS <= 0, (e.Ph == "X") != (e.Dur != nil), e.Ph == "X" && (*e.Dur <= 0 || e.Name == ""):
			ts.Fatalf("%s: %+v", args[0], e)
		case e.PID%4 == 2:
			cpus++
		default:
			tasks++
		}
	}
	want := tasks
	if args[1] != "+" {
		n, err := strconv.Atoi(args[1])
		ts.Check(err)
		want = n
	}
	if tasks == 0 || tasks != want || cpus != want {
		ts.Fatalf("%s has %d hits of tasks and %d of vCPUs, want %s", args[0], tasks, cpus, args[1])
	}
}
