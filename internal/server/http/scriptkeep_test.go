package http

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// startDetached starts a script that goes on without a client.
func (h *harness) startDetached(name, text string) api.ScriptInfo {
	h.Helper()
	i, err := h.c.DetachScript(h.ctx, api.RunScript{Script: text, Detach: name})
	if err != nil {
		h.Fatal(err)
	}
	return i
}

// show describes a script that must be there.
func (h *harness) show(name, format string) api.ScriptInfo {
	h.Helper()
	i, err := h.c.Script(h.ctx, name, format)
	if err != nil {
		h.Fatal(err)
	}
	return i
}

// stopScript ends a script, and reads what it prints then.
func (h *harness) stopScript(name string) (out string, warnings []string, end api.End) {
	h.Helper()
	s, err := h.c.StopScript(h.ctx, name)
	if err != nil {
		h.Fatal(err)
	}
	defer s.Close()
	next[api.Start](h, s, api.RecordStart)
	return h.readRest(s)
}

// TestKeptScript follows a script without a client from its beginning to its end.
func TestKeptScript(t *testing.T) {
	h := serveFake(t, nil)
	text := `BEGIN { printf("begin\n"); } kprobe:vfs_read { @[arg2] = count(); printf("%d\n", arg2); } END { printf("end\n"); }`
	if i := h.startDetached("reads", text); i.Name != "reads" || i.Script != text || i.Attached != 3 || i.Format != api.ScriptText || i.Ended != "" || i.Maps != nil {
		t.Errorf("detached %+v", i)
	}
	h.read(0, 7)
	h.read(1, 7)
	if i := h.show("reads", ""); *i.Maps != "@[7]: 2\n" || i.Hits != 2 {
		t.Errorf("shown %+v", i)
	}
	if i := h.show("reads", api.ScriptJSON); *i.Maps != `{"type": "map", "data": {"@": {"7": 2}}}`+"\n" {
		t.Errorf("as JSON %s", *i.Maps)
	}

	// One who follows sees what was printed before, and what comes; another one leaves.
	s, err := h.c.FollowScript(h.ctx, "reads")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	next[api.Start](h, s, api.RecordStart)
	left, err := h.c.FollowScript(h.ctx, "reads")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.c.EndStream(h.ctx, next[api.Start](h, left, api.RecordStart).Stream); err != nil {
		t.Fatal(err)
	}
	if _, _, end := h.readRest(left); end.Reason != api.EndAsked {
		t.Errorf("left: %+v", end)
	}
	left.Close()
	h.read(0, 8)

	// The guest is booted anew, and the script goes on.
	if _, err := h.c.Reset(h.ctx, api.ResetGuest{}); err != nil {
		t.Fatal(err)
	}
	h.read(0, 9)

	ended := "end\n\n\n@[8]: 1\n@[9]: 1\n@[7]: 2\n"
	out, warnings, end := h.stopScript("reads")
	if out != ended || len(warnings) > 0 || end.Reason != api.EndAsked || end.Delivered != 6 || end.Lost != 0 || end.Probes[0].Stats.Handled != 4 || end.Probes[0].Stats.Hits != 4 {
		t.Errorf("stopped: %q, %q, %+v", out, warnings, end)
	}
	if out, _, end := h.readRest(s); out != "begin\n7\n7\n8\n9\n"+ended || end.Reason != api.EndAsked || end.Delivered != 6 {
		t.Errorf("followed: %q, %+v", out, end)
	}
	for _, ask := range []func() error{
		func() error { _, err := h.c.Script(h.ctx, "reads", ""); return err },
		func() error { _, err := h.c.StopScript(h.ctx, "reads"); return err },
		func() error { _, err := h.c.FollowScript(h.ctx, "reads"); return err },
	} {
		if e := (*api.Error)(nil); !errors.As(ask(), &e) || e.Code != api.CodeNoScript {
			t.Errorf("behind its end: %v", e)
		}
	}
	h.checkNoScript()
}

// TestKeptScriptEnds: a script that has ended by itself keeps its name and its end.
func TestKeptScriptEnds(t *testing.T) {
	h := serveFake(t, nil)
	h.startDetached("three", `interval:ms:1 { @++; if (@ == 3) { exit(3); } }`)
	h.startDetached("gone", `kprobe:vfs_read { @++; }`)
	h.read(0, 1)
	if _, err := h.c.Detach(h.ctx, "kprobe_vfs_read"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"three", "gone"} {
		for h.show(name, "").Ended == "" {
			if h.ctx.Err() != nil {
				t.Fatalf("%s does not end", name)
			}
		}
	}
	ss, err := h.c.Scripts(h.ctx)
	if err != nil || len(ss) != 2 || ss[0].Name != "gone" || ss[0].Ended != api.EndDetached || ss[0].Hits != 1 || ss[1].Ended != api.EndExit || *ss[1].Code != 3 || ss[1].Maps != nil {
		t.Errorf("ended: %+v, %v", ss, err)
	}
	if out, _, end := h.stopScript("three"); out != "\n\n@: 3\n" || end.Reason != api.EndExit || *end.Code != 3 {
		t.Errorf("three: %q, %+v", out, end)
	}
	if out, _, end := h.stopScript("gone"); out != "\n\n@: 1\n" || end.Reason != api.EndDetached {
		t.Errorf("gone: %q, %+v", out, end)
	}

	// With the daemon's end it ends too, and who follows it is told.
	h.startDetached("last", `kprobe:vfs_read { @++; } END { printf("end\n"); }`)
	h.read(0, 1)
	s, err := h.c.FollowScript(h.ctx, "last")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	next[api.Start](h, s, api.RecordStart)
	h.cancel()
	if out, _, end := h.readRest(s); out != "end\n\n\n@: 1\n" || end.Reason != api.EndShutdown {
		t.Errorf("shutdown: %q, %+v", out, end)
	}
}

// TestKeptScriptRefused: names, two of a name, and too many.
func TestKeptScriptRefused(t *testing.T) {
	h := serveFake(t, nil)
	refused := func(code api.Code, r api.RunScript) {
		t.Helper()
		_, err := h.c.DetachScript(h.ctx, r)
		if e := (*api.Error)(nil); !errors.As(err, &e) || e.Code != code {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for _, name := range []string{"1a", "a/b", "a b", "-a", "\n", strings.Repeat("a", api.MaxScriptName+1)} {
		refused(api.CodeBadValue, api.RunScript{Script: "BEGIN { }", Detach: name})
	}
	refused(api.CodeBadScript, api.RunScript{Script: "BEGIN { print(fake); }", Detach: "again"})
	refused(api.CodeBadScript, api.RunScript{Script: "kprobe:vfs_read+1 { }", Detach: "again"})
	h.startDetached("again", "BEGIN { }")
	refused(api.CodeNameTaken, api.RunScript{Script: "BEGIN { }", Detach: "again"})
	h.stopScript("again")

	// A client that goes away while its script ends leaves nothing.
	const text = `kprobe:vfs_read { @[arg2]++; @h = hist(arg2); }`
	h.startDetached("left", text)
	gone, err := h.c.StopScript(h.ctx, "left")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for {
		ss, err := h.c.Scripts(h.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(ss) == 0 {
			break
		}
	}

	for n := range maxScripts {
		h.startDetached(fmt.Sprintf("s%d", n), text)
	}
	refused(api.CodeTooMany, api.RunScript{Script: text, Detach: "more"})
	h.read(0, 5)
	h.read(1, 5)
	for n := range maxScripts {
		if out, _, _ := h.stopScript(fmt.Sprintf("s%d", n)); !strings.HasPrefix(out, "\n\n@[5]: 2\n@h:\n[4, 8)                 2 |") {
			t.Fatalf("script %d: %q", n, out)
		}
	}
	h.checkNoScript()
}

// TestScriptRouteInterval: maps are printed and cleared. A hit may come between one map and the
// next, so hits are counted: nothing is printed twice.
func TestScriptRouteInterval(t *testing.T) {
	h := serveFake(t, nil)
	s, start := h.script(api.RunScript{Script: `kprobe:vfs_read { @[arg2] = count(); @n++; }`, IntervalMS: 1})
	out, reads, intervals := "", 0, 0
	for ; intervals < 3 || strings.Count(out, "@[7]: ") < 3 || strings.Count(out, "@n: ") < 3; reads++ {
		h.read(0, 7)
		r, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		switch r.Type {
		case api.RecordOutput:
			out += decode[api.Output](h, r).Text
		case api.RecordInterval:
			if intervals++; !strings.HasSuffix(out, "\n\n") && out != "\n" {
				t.Errorf("an interval ends behind %q", out)
			}
		}
	}
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	rest, _, _ := h.readRest(s)
	for _, name := range []string{"@[7]: ", "@n: "} {
		sum := 0
		for line := range strings.Lines(out + rest) {
			if number, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
				n, err := strconv.Atoi(number)
				if err != nil {
					t.Fatal(err)
				}
				sum += n
			}
		}
		if sum > reads {
			t.Errorf("%d of %d reads in %s", sum, reads, name)
		}
	}
}

// TestScriptLog: old records go for new ones, and a reader is told how much.
func TestScriptLog(t *testing.T) {
	l := newScriptLog()
	line := append(bytes.Repeat([]byte("x"), maxKept/4-1), '\n')
	for range 6 {
		if n, err := l.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	if p := l.read(0); p.skipped != 2*len(line) || p.next != 3*len(line) || !bytes.Equal(p.data, line) || p.last || p.end >= 0 {
		t.Errorf("first: %d skipped, next %d, %d bytes, %t", p.skipped, p.next, len(p.data), p.last)
	}
	l.mark()
	_, _ = l.Write([]byte("end\n"))
	l.close()
	p := l.read(6 * len(line))
	if string(p.data) != "end\n" || p.end != 6*len(line) || p.skipped != 0 || p.last {
		t.Errorf("end: %+v", p)
	}
	if p = l.read(p.next); p.data != nil || !p.last {
		t.Errorf("behind: %+v", p)
	}
	if err := func() error { _, err := l.Write(line); return err }(); err != nil {
		t.Error(err)
	}
}

// TestKeptScriptFailures: with JSON, failures at run time are in the output of a script, also of one without a client.
func TestKeptScriptFailures(t *testing.T) {
	const text = `kprobe:vfs_read { @ = *(uint8 *)1; }`
	const line = `{"type": "helper_error", "msg": "Bad address", "helper": "probe_read_kernel", "retcode": -14, "filename": "stdin", "line": 1, "col": 23}` + "\n"
	h := serveFake(t, nil)
	if _, err := h.c.DetachScript(h.ctx, api.RunScript{Script: text, Detach: "json", Format: api.ScriptJSON}); err != nil {
		t.Fatal(err)
	}
	follower, err := h.c.FollowScript(h.ctx, "json")
	if err != nil {
		t.Fatal(err)
	}
	defer follower.Close()
	h.read(0, 7)
	h.stopScript("json")
	if out, warnings, _ := h.readRest(follower); strings.Count(out, line) != 1 || len(warnings) > 0 {
		t.Errorf("without a client %q, warnings %q", out, warnings)
	}
	s, start := h.script(api.RunScript{Script: text, Format: api.ScriptJSON})
	h.read(0, 7)
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	out, warnings, _ := h.readRest(s)
	if want := `{"type": "attached_probes", "count": 1, "data": {"probes": 1}}` + "\n"; !strings.HasPrefix(out, want) || strings.Count(out, line) != 1 || len(warnings) > 0 {
		t.Errorf("%q, warnings %q", out, warnings)
	}
	s, start = h.script(api.RunScript{Script: text})
	h.read(0, 7)
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	if out, warnings, _ := h.readRest(s); strings.Contains(out, "helper_error") || len(warnings) != 1 || !strings.HasPrefix(warnings[0], "stdin:1:23-34: WARNING: Bad address\n") {
		t.Errorf("as text %q, warnings %q", out, warnings)
	}
}
