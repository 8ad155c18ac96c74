package http

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestRoutesDuringAChange holds up a change, and wants each route that changes nothing to answer meanwhile.
func TestRoutesDuringAChange(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:a vfs_read", "p:b schedule")
	if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "count.o")}); err != nil {
		t.Fatal(err)
	}
	if status, body := h.rawRequest("POST", "/v1/scripts", `{"script":"kprobe:vfs_read { @ = count(); }","detach":"s"}`); status != 201 {
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
		if status, body := h.rawRequest("GET", path, ""); status != want {
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

// TestStreamOfManyNames asks for the events of 5,000 probes by 300,000 names.
func TestStreamOfManyNames(t *testing.T) {
	h := serveFake(t, nil)
	var defs, names []string
	for i := range 5_000 {
		defs = append(defs, fmt.Sprintf("p:g%d/e%d vfs_read", i%7, i))
		names = append(names, fmt.Sprintf("e%d", i))
	}
	h.attach(defs...)
	s := h.stream(h.ctx, api.StreamEvents{Names: slices.Repeat(names, 60)})
	if st := next[api.Start](h, s, api.RecordStart); len(st.Probes) != len(defs) || st.Probes[7].Name != "g0/e7" {
		t.Errorf("%d probes", len(st.Probes))
	}
}

// TestWaitingChangesAreAbandoned stops a daemon while many clients wait for a change
// that takes long.
func TestWaitingChangesAreAbandoned(t *testing.T) {
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
