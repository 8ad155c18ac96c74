package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// TestBadRequests sends what a client should not, and wants the same: one clear
// error with a stable code, and nothing attached.
func TestBadRequests(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:taken vfs_read")
	before, err := h.c.Probes(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, method, path, body string
		status                   int
		code                     api.Code
		text                     string // in the message
	}{
		{"no such path", "GET", "/v2/guest", "", 404, "no_route", "no route /v2/guest"},
		{"root", "GET", "/", "", 404, "no_route", ""},
		{"method", "PUT", "/v1/probes", "", 405, "method_not_allowed", "PUT"},
		{"head", "HEAD", "/v1/guest", "", 405, "", ""},
		{"delete events", "DELETE", "/v1/events", "", 405, "method_not_allowed", ""},
		{"no body", "POST", "/v1/probes", "", 400, "bad_json", "the body is empty"},
		{"not json", "POST", "/v1/probes", "p:x vfs_read", 400, "bad_json", "invalid character"},
		{"cut off", "POST", "/v1/probes", `{"def":"p`, 400, "bad_json", "cut off"},
		{"wrong type", "POST", "/v1/probes", `{"def":1}`, 400, "bad_json", `field "def" must be a string, not number`},
		{"wrong type of the body", "POST", "/v1/probes", `[1]`, 400, "bad_json", "it must be an object, not array"},
		{"wrong type in a batch", "POST", "/v1/probes", `{"probes":[{"def":"p:x vfs_read","post":1}]}`, 400, "bad_json", `field "post" must be true or false, not number`},
		{"wrong type of an argument", "POST", "/v1/guest/call", `{"symbol":"do_fork","args":[2]}`, 400, "bad_json", `field "args" must be a string, not number`},
		{"body where none is taken", "POST", "/v1/guest/pause", `{"now":true}`, 400, "unknown_field", `"now"`},
		{"body of resume", "POST", "/v1/guest/resume", `[]`, 400, "bad_json", "must be an object"},
		{"query where none is taken", "GET", "/v1/guest?x=1", "", 400, "unknown_field", `"x"`},
		{"query of a change", "DELETE", "/v1/probes?name=taken", "", 400, "unknown_field", `"name"`},
		{"query of a POST", "POST", "/v1/events?probe=taken", "", 400, "unknown_field", `"probe"`},
		{"array", "POST", "/v1/probes", `[]`, 400, "bad_json", ""},
		{"two values", "POST", "/v1/probes", `{"def":"p:x vfs_read"} {}`, 400, "bad_json", "more than one JSON value"},
		{"trailing", "POST", "/v1/probes", `{"def":"p:x vfs_read"} x`, 400, "bad_json", ""},
		{"unknown field", "POST", "/v1/probes", `{"def":"p:x vfs_read","when":"now"}`, 400, "unknown_field", `unknown field "when"`},
		{"unknown field in batch", "POST", "/v1/probes", `{"probes":[{"def":"p:x vfs_read","Stai":true}]}`, 400, "unknown_field", `"Stai"`},
		{"another case", "POST", "/v1/probes", `{"Def":"p:x vfs_read"}`, 400, "unknown_field", `unknown field "Def": it is written "def"`},
		{"another case in a batch", "POST", "/v1/probes", `{"probes":[{"def":"p:x vfs_read","POST":true}]}`, 400, "unknown_field", `"POST"`},
		{"twice", "POST", "/v1/probes", `{"def":"p:x vfs_read","def":"p:y do_fork"}`, 400, "bad_json", `field "def" is given twice`},
		{"twice in a batch", "POST", "/v1/probes", `{"probes":[{"def":"p:x vfs_read"},{"post":true,"def":"p:x vfs_read","post":false}]}`, 400, "bad_json", `field "post" is given twice`},
		{"twice, with an escape", "POST", "/v1/probes", `{"def":"p:x vfs_read","d\u0065f":"p:y do_fork"}`, 400, "bad_json", `field "def" is given twice`},
		{"null", "POST", "/v1/probes", `null`, 400, "bad_value", "no probe"},
		{"nothing", "POST", "/v1/probes", `{}`, 400, "bad_value", "no probe"},
		{"empty batch", "POST", "/v1/probes", `{"probes":[]}`, 400, "bad_value", "no probe"},
		{"both", "POST", "/v1/probes", `{"def":"p:x vfs_read","probes":[]}`, 400, "bad_value", "either"},
		{"too large", "POST", "/v1/probes", `{"def":"` + strings.Repeat("x", maxBody) + `"}`, 413, "body_too_large", "larger than 4194304 bytes"},
		{"empty definition", "POST", "/v1/probes", `{"probes":[{}]}`, 400, "bad_definition", ""},
		{"malformed", "POST", "/v1/probes", `{"def":"p:x vfs_read %nope"}`, 400, "bad_definition", "Invalid register name"},
		{"return probe with post", "POST", "/v1/probes", `{"def":"r:x vfs_read $retval","post":true}`, 501, "unavailable", "return probe"},
		{"return probe inside a function", "POST", "/v1/probes", `{"def":"r:x vfs_read+9 $retval"}`, 400, "bad_definition", ""},
		{"unknown symbol", "POST", "/v1/probes", `{"def":"p:x nonsense"}`, 404, "symbol_not_found", "Invalid probed address or symbol (the guest has no symbol \"nonsense\";"},
		{"ambiguous symbol", "POST", "/v1/probes", `{"def":"p:x mix_step"}`, 422, "ambiguous_symbol", "mix_step"},
		{"taken", "POST", "/v1/probes", `{"def":"p:taken vfs_read"}`, 409, "name_taken", "There is already the exact same probe event (the event is kprobes/taken;"},
		{"taken by another kind", "POST", "/v1/probes", `{"def":"r:taken do_fork"}`, 409, "name_taken", "Probe type is different from existing probe"},
		{"taken in batch", "POST", "/v1/probes", `{"probes":[{"def":"p:x vfs_read"},{"def":"p:x do_fork %di"}]}`, 409, "name_taken", "Argument type or name is different"},
		{"deletion of nothing", "POST", "/v1/probes", `{"def":"-:nope"}`, 404, "probe_not_found", "No such probe event"},
		{"deletion of half", "POST", "/v1/probes", `{"probes":[{"def":"-:taken"},{"def":"-:taken"}]}`, 404, "probe_not_found", "No such probe event"},
		{"malformed deletion", "POST", "/v1/probes", `{"def":"-taken"}`, 400, "bad_definition", "not a probe definition"},
		{"deletion for a stream", "POST", "/v1/events", `{"probes":[{"def":"-:taken"}]}`, 400, "bad_value", "takes none away"},
		{"many", "DELETE", "/v1/probes?probe=taken&probe=nope", "", 404, "probe_not_found", `"nope"`},
		{"pattern of nothing", "DELETE", "/v1/probes?probe=x*", "", 404, "probe_not_found", `"x*"`},
		{"no pattern", "GET", "/v1/probes?probe=%5Ba", "", 400, "bad_value", "not closed"},
		{"patterns", "GET", "/v1/probes?probe=t*" + manyGlobs(session.MaxGlobs), "", 429, "too_many", "64 patterns"},
		{"patch nobody", "PATCH", "/v1/probes", `{"names":["taken","nope"],"enabled":false}`, 404, "probe_not_found", `"nope"`},
		{"inside an instruction", "POST", "/v1/probes", `{"def":"p:x vfs_read+1"}`, 422, "not_boundary", ""},
		{"outside text", "POST", "/v1/probes", `{"def":"p:x vfs_bytes_read"}`, 422, "not_text", ""},
		{"nothing there", "POST", "/v1/probes", `{"def":"p:x 0x1000"}`, 404, "no_symbol_at_address", ""},
		{"blacklisted", "POST", "/v1/probes", `{"def":"p:x blacklisted_fn"}`, 422, "blacklisted", ""},
		{"unknown probe", "GET", "/v1/probes/nope", "", 404, "probe_not_found", `"nope"`},
		{"unknown number", "DELETE", "/v1/probes/99", "", 404, "probe_not_found", `"99"`},
		{"unknown group", "DELETE", "/v1/probes/other%2Ftaken", "", 404, "probe_not_found", `"other/taken"`},
		{"patch nothing", "PATCH", "/v1/probes/taken", `{}`, 400, "bad_value", "either enabled"},
		{"patch more", "PATCH", "/v1/probes/taken", `{"enabled":true,"def":"p x"}`, 400, "unknown_field", ""},
		{"knob", "PUT", "/v1/kprobes/enabled", `{"enabled":2}`, 400, "bad_json", ""},
		{"call nothing", "POST", "/v1/guest/call", `{}`, 400, "bad_value", "exactly one"},
		{"call both", "POST", "/v1/guest/call", `{"symbol":"do_fork","addr":"0x1"}`, 400, "bad_value", "exactly one"},
		{"call unknown", "POST", "/v1/guest/call", `{"symbol":"nope"}`, 404, "symbol_not_found", "nope"},
		{"call data", "POST", "/v1/guest/call", `{"symbol":"vfs_bytes_read"}`, 400, "bad_value", "not a function"},
		{"call user code", "POST", "/v1/guest/call", `{"symbol":"user_hot"}`, 400, "bad_value", "not a function of the guest's kernel"},
		{"call seven", "POST", "/v1/guest/call", `{"symbol":"do_fork","args":["0","0","0","0","0","0","0"]}`, 400, "bad_value", "at most 6"},
		{"call long", "POST", "/v1/guest/call", `{"symbol":"do_fork","timeoutMs":60001}`, 400, "bad_value", "60001"},
		{"call negative", "POST", "/v1/guest/call", `{"symbol":"do_fork","timeoutMs":-1}`, 400, "bad_value", "-1"},
		{"call with no time", "POST", "/v1/guest/call", `{"symbol":"do_fork","timeoutMs":0}`, 400, "bad_value", "timeoutMs 0: not in 1 to 60000"},
		{"call no safe point", "POST", "/v1/guest/call", `{"symbol":"do_fork"}`, 504, "no_safe_point", "call do_fork: no vCPU came"},
		{"symbols kind", "GET", "/v1/symbols?kind=x", "", 400, "bad_value", `"x"`},
		{"symbols limit", "GET", "/v1/symbols?limit=0", "", 400, "bad_value", `"0"`},
		{"tasks of a guest without", "GET", "/v1/tasks", "", 501, "unavailable", "not Linux"},
		{"tasks threads", "GET", "/v1/tasks?threads=x", "", 400, "bad_value", `"x"`},
		{"symbols twice", "GET", "/v1/symbols?match=a&match=b", "", 400, "bad_value", "2 times"},
		{"query", "GET", "/v1/symbols?glob=a", "", 400, "unknown_field", `"glob"`},
		{"console bytes", "GET", "/v1/guest/console?bytes=maybe", "", 400, "bad_value", `"maybe"`},
		{"nothing typed", "POST", "/v1/guest/console", "{}", 400, "bad_value", "0 bytes: not in 1 to 65536"},
		{"typed twice", "POST", "/v1/guest/console", `{"text":"a","bytes":"YQ=="}`, 400, "bad_value", "both text and bytes"},
		{"too much typed", "POST", "/v1/guest/console", `{"text":"` + strings.Repeat("a", 65537) + `"}`, 400, "bad_value", "65537 bytes: not in 1 to 65536"},
		{"console follow", "GET", "/v1/guest/console?follow=maybe", "", 400, "bad_value", `"maybe"`},
		{"events query", "GET", "/v1/events?name=x", "", 400, "unknown_field", `"name"`},
		{"events unknown", "GET", "/v1/events?probe=x", "", 404, "probe_not_found", `"x"`},
		{"events both", "POST", "/v1/events", `{"probes":[{"def":"p:x vfs_read"}],"names":["taken"]}`, 400, "bad_value", "either"},
		{"events refused", "POST", "/v1/events", `{"probes":[{"def":"p:x vfs_read"},{"def":"p:y vfs_read+1"}]}`, 422, "not_boundary", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := h.rawRequest(tc.method, tc.path, tc.body)
			if status != tc.status {
				t.Errorf("status %d, want %d: %s", status, tc.status, body)
			}
			if tc.code == "" {
				return
			}
			var e api.ErrorBody
			dec := json.NewDecoder(strings.NewReader(body))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&e); err != nil {
				t.Fatalf("no envelope: %v: %s", err, body)
			}
			if e.Error.Code != tc.code || !strings.Contains(e.Error.Message+" ("+e.Error.Detail+")", tc.text) {
				t.Errorf("error %q %q, want %q with %q", e.Error.Code, e.Error.Message, tc.code, tc.text)
			}
		})
	}
	after, err := h.c.Probes(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("something was half attached (-before +after):\n%s", d)
	}
}

// TestErrorsPointAtTheColumn checks what the caret under a definition is made
// of.
func TestErrorsPointAtTheColumn(t *testing.T) {
	h := serveFake(t, nil)
	for _, tc := range []struct {
		defs   []string
		code   api.Code
		syntax string
		errno  string
		index  int
		column int
	}{
		{[]string{"p:x vfs_read %nope"}, "bad_definition", "BAD_REG_NAME", "EINVAL", 0, 13},
		{[]string{"p:x  vfs_read   a=+0(%di"}, "bad_definition", "DEREF_OPEN_BRACE", "EINVAL", 0, 21},
		{[]string{"p:ok vfs_read", "p:x nonsense"}, "symbol_not_found", "BAD_PROBE_ADDR", "EINVAL", 1, 4},
		{[]string{"p:ok vfs_read", "p:y do_fork", "p:x vfs_read+1"}, "not_boundary", "BAD_INSN_BNDRY", "EILSEQ", 2, 4},
		{[]string{"p:a vfs_read", "p:a do_fork %di"}, "name_taken", "DIFF_ARG_TYPE", "EEXIST", 1, 12},
		{[]string{"p:9a nonsense"}, "symbol_not_found", "BAD_PROBE_ADDR", "EINVAL", 0, 5},
		{[]string{"p:9a vfs_read %nope"}, "bad_definition", "BAD_EVENT_NAME", "EINVAL", 0, 2},
	} {
		var specs []api.ProbeSpec
		for _, d := range tc.defs {
			specs = append(specs, api.ProbeSpec{Def: d})
		}
		_, err := h.c.Attach(h.ctx, specs...)
		var e *api.Error
		if !errors.As(err, &e) || e.Index == nil || e.Column == nil {
			t.Errorf("%q: %#v", tc.defs, err)
			continue
		}
		if e.Code != tc.code || e.Syntax != tc.syntax || e.Errno != tc.errno || *e.Index != tc.index || *e.Column != tc.column {
			t.Errorf("%q: %s %s %s index %d column %d in %q, want %s %s %s index %d column %d", tc.defs,
				e.Code, e.Syntax, e.Errno, *e.Index, *e.Column, e.Command, tc.code, tc.syntax, tc.errno, tc.index, tc.column)
		}
		if want := api.ErrnoByName(tc.errno); !errors.Is(err, want) {
			t.Errorf("%v is not %v", err, want)
		}
	}
	h.checkIdentical(true)
}

// TestErrorMapping has a row for each error of the layers below.
func TestErrorMapping(t *testing.T) {
	for _, tc := range []struct {
		err    error
		code   api.Code
		status int
	}{
		{machine.ErrNotRunnable, api.CodeGuestState, 409},
		{fmt.Errorf("x: %w", machine.ErrNotRunning), api.CodeGuestState, 409},
		{machine.ErrNoSafePoint, api.CodeNoSafePoint, 504},
		{machine.ErrCallRunning, api.CodeCallRunning, 504},
		{machine.ErrCallBusy, api.CodeCallBusy, 409},
		{machine.ErrClosed, api.CodeClosing, 503},
		{&machine.StopTimeoutError{CPU: 1}, api.CodeStopTimeout, 504},
		{probe.ErrClosed, "closed", 503},
		{&probe.Error{Code: probe.CodeHostCannot}, "host_cannot", 422},
		{&guest.AmbiguousSymbolError{Name: "x"}, "ambiguous_symbol", 422},
		{fmt.Errorf("x: %w", guest.ErrSymbolNotFound), "symbol_not_found", 404},
		{errors.New("surprise"), api.CodeInternal, 500},
	} {
		e := toAPI(tc.err)
		if e.Code != tc.code || status(e.Code) != tc.status {
			t.Errorf("%v: %s, status %d; want %s, %d", tc.err, e.Code, status(e.Code), tc.code, tc.status)
		}
	}
}

// TestPanicIsContained puts a broken route behind the guard.
func TestPanicIsContained(t *testing.T) {
	h := serveFake(t, nil)
	h.g.call = func(guest.GVA, []uint64) (uint64, error) { panic("broken") }
	status, body := h.rawRequest("POST", "/v1/guest/call", `{"symbol":"do_fork"}`)
	if status != http.StatusInternalServerError || !strings.Contains(body, `"internal"`) {
		t.Errorf("status %d: %s", status, body)
	}
	if !strings.Contains(h.log.String(), "panic in request") {
		t.Errorf("the log does not have it:\n%s", h.log)
	}
	if _, err := h.c.Guest(h.ctx); err != nil {
		t.Errorf("the daemon is not there any more: %v", err)
	}
}

// manyGlobs is a query of n different patterns.
func manyGlobs(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("&probe=t**" + strings.Repeat("*", i))
	}
	return b.String()
}
