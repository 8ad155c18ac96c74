package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// keepingServer starts a fleet's server without a daemon, and returns its URL and a connection of a peer that can publish
// anything.
func keepingServer(t *testing.T) (string, *nats.Conn) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), MaxPayload: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	for !s.ReadyForConnections(time.Second) {
		if patience.Context(t).Err() != nil {
			t.Fatal("the server does not begin")
		}
	}
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b := fleet.DefaultBounds()
	b.EventsBytes, b.MapsBytes = 64<<20, 64<<20
	if err := fleet.Prepare(patience.Context(t), nc, b); err != nil {
		t.Fatal(err)
	}
	return s.ClientURL(), nc
}

// runReport runs fleet report.
func runReport(t *testing.T, url string, args ...string) (out, said string, status int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status = Program().Run(patience.Context(t), command.Env{Args: append([]string{"fleet", "report", "--fleet", url}, args...), Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, Getenv: func(string) string { return "" }})
	return stdout.String(), stderr.String(), status
}

const (
	aRun = "RUNRUNRUN1"
	aDef = "DEFDEFDEF1"
)

// publishHead publishes maps or events of a run as a daemon does, after change has modified the head.
func publishHead(t *testing.T, nc *nats.Conn, kind string, records string, change func(map[string]any)) {
	t.Helper()
	h := map[string]any{
		"version": 1, "name": "reads", "id": aDef, "since": time.Now(), "daemon": "vm1", "run": aRun, "seq": 1, "epoch": time.Now(), "time": time.Now(), "from": 0, "to": 0, "lost": 0,
	}
	if change != nil {
		change(h)
	}
	head, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(patience.Context(t), time.Minute)
	defer cancel()
	if _, err := nc.RequestWithContext(ctx, fmt.Sprintf("guestprobe.%s.%s.%s", kind, h["id"], h["run"]), append(append(head, '\n'), records...)); err != nil {
		t.Fatal(err)
	}
}

// TestReportMalformed: malformed messages of a peer are left out and counted. The report still works.
func TestReportMalformed(t *testing.T) {
	url, nc := keepingServer(t)
	good := `{"name":"@n","keyed":false,"kind":"count","elements":[{"words":[7]}]}` + "\n"
	publishHead(t, nc, "maps", good+`{"name":"@x","keyed":false,"kind":"int","elements":[{"words":[5],"text":"5"}]}`+"\nno json\n"+
		`{"name":"@y\nvm9: forged","keyed":false,"kind":"count","elements":[{"words":[5]}]}`+"\n", func(h map[string]any) {
		h["hits"], h["missed"], h["to"] = uint64(1<<64-1), uint64(1<<64-1), 3
	})
	publishHead(t, nc, "maps", good, func(h map[string]any) {
		h["run"], h["daemon"], h["hits"], h["lost"], h["end"], h["final"], h["seq"] = "RUNRUNRUN2", "vm2\nvm3 running", 9, uint64(1<<64-1), "x\ny", true, 2
	})
	for i, bad := range []func(map[string]any){
		func(h map[string]any) { h["version"] = 2 }, func(h map[string]any) { h["left"] = -5 }, func(h map[string]any) { h["to"] = uint64(1 << 63) }, func(h map[string]any) { h["every"] = 1 << 40 },
		func(h map[string]any) { h["from"] = 5 }, func(h map[string]any) { h["daemon"] = "" }, func(h map[string]any) { h["end"] = strings.Repeat("x", 1<<20) },
	} {
		publishHead(t, nc, "maps", good, func(h map[string]any) { h["run"] = fmt.Sprint("RUNRUNBAD", i); bad(h) })
	}
	publishHead(t, nc, "events", "nonsense\n", func(h map[string]any) { h["to"] = 2 })
	out, said, status := runReport(t, url, "--format", "json", "reads")
	if status != exitPartly || !strings.Contains(said, "vm1: 3 records of its maps are not in the sums, or not whole") || !strings.Contains(said, "Ignored 7 messages from another version") {
		t.Errorf("status %d, %s", status, said)
	}
	var s struct {
		Maps  []json.RawMessage
		Total struct{ Hits, Lost, Kept, Missing uint64 }
		Runs  []struct {
			Daemon, State string
			Malformed     int
		}
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(s.Maps) != 1 || !strings.Contains(string(s.Maps[0]), `"@n": 14`) {
		t.Errorf("maps %s", s.Maps)
	}
	if s.Total.Hits != 1<<64-1 || s.Total.Lost != 1<<64-1 || s.Total.Kept != 2 || s.Total.Missing != 1 {
		t.Errorf("totals %+v", s.Total)
	}
	if len(s.Runs) != 2 || s.Runs[0].Malformed != 3 || s.Runs[1].Daemon != "vm2_vm3_running" || s.Runs[1].State != "x y" {
		t.Errorf("runs %+v", s.Runs)
	}
	out, said, _ = runReport(t, url, "reads")
	if n := strings.Count(out, "\n"); n < 4 || strings.Contains(out+said, "\nvm3") || strings.Contains(out+said, "\nvm9") || strings.Contains(said, "-5") {
		t.Errorf("%s%s", out, said)
	}
	// The list has no counts of kept events: it does not read them.
	out, _, status = runReport(t, url, "--format", "json")
	if status != 0 || strings.Contains(out, `"kept"`) || strings.Contains(out, `"missing"`) || !strings.Contains(out, `"events"`) {
		t.Errorf("status %d: %s", status, out)
	}
}

// TestReportUnpacked: unpacking compressed messages uses bounded memory. The report says what it leaves out.
func TestReportUnpacked(t *testing.T) {
	url, nc := keepingServer(t)
	packed := func(run int, size int) {
		head, err := json.Marshal(map[string]any{
			"version": 1, "name": "reads", "id": aDef, "since": time.Now(), "daemon": fmt.Sprint("vm", run), "run": fmt.Sprint("RUNRUNRUN", run), "seq": 1, "epoch": time.Now(), "time": time.Now(),
		})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		fmt.Fprintf(z, `%s
{"name":"@n","keyed":false,"kind":"count","elements":[{"words":[7]}],"more":"%s"}
`, head, strings.Repeat("x", size))
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(patience.Context(t), time.Minute)
		defer cancel()
		if _, err := nc.RequestWithContext(ctx, fmt.Sprintf("guestprobe.maps.%s.RUNRUNRUN%d", aDef, run), b.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	for run := range 5 {
		packed(run, 60<<20)
	}
	packed(5, 65<<20)
	out, said, status := runReport(t, url, "reads")
	if status != exitPartly || !strings.Contains(out, "\n@n: 28\n") || !strings.Contains(said, "vm4: its maps are left out: the maps of all daemons exceed 256 MiB") || !strings.Contains(said, "Ignored 1 message from another version") {
		t.Errorf("status %d: %s%s", status, out, said)
	}
	publishHead(t, nc, "maps", strings.Repeat("{}\n", maxMapRecords+5), func(h map[string]any) { h["id"], h["name"] = "DEFDEFDEF2", "many" })
	if _, said, status = runReport(t, url, "many"); status != exitPartly || !strings.Contains(said, fmt.Sprintf("vm1: more than %d records of maps", maxMapRecords)) {
		t.Errorf("status %d: %s", status, said)
	}
}

// TestReportStale: a run is stale if it should have published since. Its row, JSON and the exit status show that.
func TestReportStale(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		h    fleet.Head
		want bool
	}{
		{fleet.Head{Every: 60, Kept: now.Add(-4 * time.Minute)}, true},
		{fleet.Head{Every: 60, Kept: now.Add(-2 * time.Minute)}, false},
		{fleet.Head{Every: 60, Kept: now.Add(-4 * time.Minute), Final: true}, false},
		{fleet.Head{Kept: now.Add(-4 * time.Hour)}, false}, // from an older daemon
	} {
		if got := tc.h.Stale(now); got != tc.want {
			t.Errorf("%+v: %v", tc.h, got)
		}
	}
	zero := uint64(0)
	s := &publishedScript{byRun: map[string]*publishedRun{aRun: {Daemon: "vm1", Run: aRun, State: "running", Stale: true, Kept: &zero}}}
	s.sum()
	if row := s.Runs[0].row(); row[1] != "stale" || s.Stale != 1 || s.Running != 1 {
		t.Errorf("%v, %+v", row, s)
	}
	if err := staleness([]*publishedScript{s}, nil); !errors.Is(err, errPartly) {
		t.Error(err)
	}
	b, err := json.Marshal(s)
	if err != nil || !strings.Contains(string(b), `"stale":true`) || !strings.Contains(string(b), `"stale":1`) {
		t.Errorf("%s, %v", b, err)
	}
}
