package http

import (
	"encoding/json"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestEffortBounded: requests that compile run one at a time, and are rejected, before and while they compile, as long as
// the daemon uses too much memory. What was attached before continues, and the daemon serves again afterwards.
func TestEffortBounded(t *testing.T) {
	h := serveFake(t, nil)
	var used atomic.Uint64
	h.s.effort.used = used.Load
	limit := h.s.effort.limit
	if want := uint64(1<<30) + 2*h.s.opt.memory; limit != want {
		t.Errorf("limit %d, want %d", limit, want)
	}
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:before vfs_read"}); err != nil {
		t.Fatal(err)
	}
	body := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	text := "BEGIN { unroll(100) {" + strings.Repeat("@a[1]=1;", 500) + "} }" // of more instructions than allowed
	script := body(api.Check{Script: &api.RunScript{Script: text}})
	requests := map[string]string{
		"/v1/check":    script,
		"/v1/scripts":  body(api.RunScript{Script: text}),
		"/v1/probes":   body(api.ProbeSpec{Def: "p vfs_write"}),
		"/v1/programs": body(api.AttachProgram{}),
		"/v1/files":    body(api.GiveFile{}),
	}
	used.Store(limit)
	for path, body := range requests {
		status, answer := h.rawRequest("POST", path, body)
		if status != 429 || !strings.Contains(answer, `"too_many"`) || !strings.Contains(answer, `"ENOMEM"`) || !strings.Contains(answer, "--memory-limit") {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	// Memory runs out while a script is compiled.
	calls := 0
	h.s.effort.used = func() uint64 {
		if calls++; calls > 2 {
			return limit
		}
		return 0
	}
	if status, answer := h.rawRequest("POST", "/v1/check", script); status != 429 || !strings.Contains(answer, `"ENOMEM"`) {
		t.Errorf("while it is compiled: %d %s", status, answer)
	}
	// Only one compiles at a time, and all get their own answer.
	var now, most atomic.Int64
	h.s.effort.used = func() uint64 {
		// It is called twice in a row at most by the request whose turn it is.
		most.Store(max(most.Load(), now.Add(1)))
		runtime.Gosched()
		now.Add(-1)
		return 0
	}
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			if status, answer := h.rawRequest("POST", "/v1/check", script); status != 400 || !strings.Contains(answer, "more than 32768 instructions") {
				t.Errorf("%d %s", status, answer)
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d requests were compiled at once", most.Load())
	}
	if ps, err := h.c.Probes(h.ctx); err != nil || len(ps) != 1 {
		t.Errorf("left are %v, %v", ps, err)
	}
}
