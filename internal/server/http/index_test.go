package http

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestNobodyWaitsForAChange holds up a change and wants everything that changes
// nothing answered meanwhile.
func TestNobodyWaitsForAChange(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:a vfs_read", "p:b schedule")
	if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "count.o")}); err != nil {
		t.Fatal(err)
	}
	if status, body := h.raw("POST", "/v1/scripts", `{"script":"kprobe:vfs_read { @ = count(); }","detach":"s"}`); status != 201 {
		t.Fatalf("%d %s", status, body)
	}
	release := h.holdChanges()
	for _, r := range routes() {
		if r.Method != "GET" || strings.HasSuffix(r.Path, "/events") || strings.HasSuffix(r.Path, "/output") {
			continue // it ends with its client
		}
		path := strings.NewReplacer("{probe}", "a", "{map}", "1", "{script}", "s").Replace(r.Path)
		if slices.ContainsFunc(r.Query, func(p Parameter) bool { return p.Required }) {
			path += "?at=vfs_read"
		}
		want := 200
		switch r.Path {
		case "/v1/tasks", "/v1/registers", "/v1/memory", "/v1/backtraces", "/v1/pagetables":
			want = 501 // no Linux, and no machine
		}
		if status, body := h.raw("GET", path, ""); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	s := h.stream(h.ctx, api.StreamEvents{Names: []string{"a"}})
	if st := next[api.Start](h, s, api.RecordStart); len(st.Probes) != 1 {
		t.Errorf("start %+v", st)
	}
	h.g.hit(t, 0, "vfs_read", 0, nil)
	next[api.Hit](h, s, api.RecordHit)
	release()
}

// TestLongListOfNames asks for the events of 5,000 probes by 300,000 names. To look one
// up takes as long however many there are.
func TestLongListOfNames(t *testing.T) {
	h := serveFake(t, nil)
	lookup := func() time.Duration { // the least of some tries
		best := time.Hour
		for range 20 {
			begin := time.Now()
			for range 100 {
				if _, err := h.s.probes.Find("e7"); err != nil {
					t.Fatal(err)
				}
			}
			best = min(best, time.Since(begin))
		}
		return best
	}
	var defs, names []string
	for i := range 5_000 {
		defs = append(defs, fmt.Sprintf("p:g%d/e%d vfs_read", i%7, i))
		names = append(names, fmt.Sprintf("e%d", i))
	}
	h.attach(defs[:10]...)
	few := lookup()
	h.attach(defs[10:]...)
	if many := lookup(); many > 20*few {
		t.Errorf("100 names are found in %v among 5,000 probes, in %v among 10", many, few)
	}
	s := h.stream(h.ctx, api.StreamEvents{Names: slices.Repeat(names, 60)})
	if st := next[api.Start](h, s, api.RecordStart); len(st.Probes) != len(defs) || st.Probes[7].Name != "g0/e7" {
		t.Errorf("%d probes", len(st.Probes))
	}
}

// TestChangesThatWaitAreGivenUp stops a daemon while many clients wait for a change
// that takes long.
func TestChangesThatWaitAreGivenUp(t *testing.T) {
	h := serveFake(t, nil)
	st := h.s.probes
	release := h.holdChanges()
	ends := make(chan error)
	const clients = 20
	for i := range clients {
		go func() {
			_, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: fmt.Sprintf("p:e%d vfs_read", i)})
			ends <- err
		}()
	}
	h.cancel()
	for !st.Closed() { // it is set before the lock is taken
		_, _ = h.c.Guest(h.ctx)
	}
	release()
	for range clients {
		if err := <-ends; err == nil {
			t.Error("a probe was attached behind the end")
		}
	}
	h.stop()
}

func TestIndex(t *testing.T) {
	const named = 8 // so many an error names
	h := serveFake(t, nil)
	var defs []string
	for i := range 2 * named {
		defs = append(defs, fmt.Sprintf("p:g%02d/same vfs_read", i))
	}
	h.attach(append(defs, "p:g00/other vfs_read")...)
	_, err := h.c.Probe(h.ctx, "same")
	var wire *api.Error
	if !errors.As(err, &wire) || wire.Code != api.CodeAmbiguousName || !strings.HasPrefix(wire.Message, `16 probes are called "same"`) ||
		wire.Detail != "say which: g00/same, g01/same, g02/same, g03/same, g04/same, g05/same, g06/same, g07/same and 8 more" {
		t.Errorf("%+v", wire)
	}
	for i := range 2*named - 1 {
		if _, err := h.c.Detach(h.ctx, fmt.Sprintf("g%02d/same", i)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"same": "g15/same", "other": "g00/other", "17": "g00/other"} {
		if p, err := h.c.Probe(h.ctx, name); err != nil || p.Name != want {
			t.Errorf("%s: %s, %v", name, p.Name, err)
		}
	}
	if _, err := h.c.DetachAll(h.ctx); err != nil {
		t.Fatal(err)
	}
	if left := h.s.probes.Probes(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
