package http

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestQueryErrors has each way in which a parameter of a query can be wrong, and what is said about it.
func TestQueryErrors(t *testing.T) {
	h := serveFake(t, nil)
	for path, want := range map[string]string{
		"/v1/guest?a=1":                                 `unknown query parameter "a"`,
		"/v1/symbols?limit=1&kinds=func":                `unknown query parameter "kinds"`,
		"/v1/fleet?revision=":                           `revision "": want a number`,
		"/v1/fleet?revision=0x4":                        `revision "0x4": want a number`,
		"/v1/fleet?revision=4&revision=5":               `query parameter "revision" is given 2 times`,
		"/v1/guest/console?follow=yes":                  `follow "yes": not a boolean`,
		"/v1/guest/console?bytes=2":                     `bytes "2": not a boolean`,
		"/v1/symbols?limit=0":                           `limit "0": not a number from 1 to 1048576`,
		"/v1/symbols?limit=":                            `limit "": not a number from 1 to 1048576`,
		"/v1/symbols?limit=1048577":                     `limit "1048577": not a number from 1 to 1048576`,
		"/v1/symbols?limit=0x10":                        `limit "0x10": not a number from 1 to 1048576`,
		"/v1/symbols?kind=code":                         `kind "code": not func, data or other`,
		"/v1/symbols?types=":                            `types "": not a boolean`,
		"/v1/symbols?types=maybe":                       `types "maybe": not a boolean`,
		"/v1/places?types=maybe":                        `types "maybe": not a boolean`,
		"/v1/tasks?threads=":                            `threads "": not true or false`,
		"/v1/tasks?threads=maybe":                       `threads "maybe": not true or false`,
		"/v1/registers?vcpu=-1":                         `vcpu "-1": not a number`,
		"/v1/registers?vcpu=2147483648":                 `vcpu "2147483648": not a number`,
		"/v1/registers?vectors=maybe":                   `vectors "maybe": not true or false`,
		"/v1/backtraces?task=init":                      `task "init": not a number`,
		"/v1/backtraces?task=1&vcpu=0":                  `vcpu and task: give one of them`,
		"/v1/pagetables?at=0&space=0":                   `space "0": not the address of a page table`,
		"/v1/pagetables?at=0&space=0x10000000000000000": `space "0x10000000000000000": not the address of a page table`,
		"/v1/memory?at=0&length=0":                      `length "0": not in 1 to 1048576`,
		"/v1/memory?at=0&length=0x100001":               `length "0x100001": not in 1 to 1048576`,
		"/v1/memory?at=0&length=":                       `length "": not in 1 to 1048576`,
		"/v1/memory?at=0&live=maybe":                    `live "maybe": not true or false`,
		"/v1/memory?at=0&symbols=maybe":                 `symbols "maybe": not true or false`,
		"/v1/memory?at=0&type=int&length=4":             `length and type: the type says how long it is`,
		"/v1/disas":                                     `at: say which function: a name, NAME+OFFSET or an address`,
		"/v1/disas?at=":                                 `at: say which function: a name, NAME+OFFSET or an address`,
		"/v1/disas?at=vfs_read&lines=maybe":             `lines "maybe": not true or false`,
		"/v1/variables":                                 `at: say where: FUNCTION+OFFSET, FILE:LINE or inline:FUNCTION`,
		"/v1/variables?at=vfs_read&at=vfs_read":         `query parameter "at" is given 2 times`,
		"/v1/symbols?match=%5Ba":                        `match: pattern "[a": the bracket at byte 1 is not closed`,
		"/v1/probes?probe=%5Ba":                         `pattern "[a": the bracket at byte 1 is not closed`,
		"/v1/charts?of=a&of=b":                          `query parameter "of" is given 2 times`,
		"/v1/charts?of=nothing":                         `"nothing": no script that runs, and no program, of this name has maps`,
		"/v1/places?match=a&match=b":                    `query parameter "match" is given 2 times`,
	} {
		status, body := h.rawRequest("GET", path, "")
		var e api.ErrorBody
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Errorf("%s: status %d, %s", path, status, body)
			continue
		}
		if e.Error.Message != want {
			t.Errorf("%s: status %d, %q, want %q", path, status, e.Error.Message, want)
		}
	}
}

// TestQueryBlanks: an empty value of these is as good as none, and numbers may have prefixes where addresses do.
func TestQueryBlanks(t *testing.T) {
	h := serveFake(t, nil)
	for _, path := range []string{
		"/v1/symbols?kind=&match=", "/v1/symbols?types=false&limit=010", "/v1/places?match=", "/v1/charts?of=", "/v1/guest/console?follow=&bytes=",
		"/v1/guest/console?follow=0&bytes=F", "/v1/probes?probe=a&probe=b", "/v1/fleet?revision=18446744073709551615",
	} {
		h.attach("p:a vfs_read", "p:b schedule")
		if status, body := h.rawRequest("GET", path, ""); status != http.StatusOK {
			t.Errorf("%s: status %d, %s", path, status, body)
		}
		if status, body := h.rawRequest("DELETE", "/v1/probes?probe=a&probe=b", ""); status != http.StatusOK {
			t.Fatalf("detach: status %d, %s", status, body)
		}
	}
	for _, path := range []string{"/v1/memory?at=0&length=0x10&vcpu=0x0", "/v1/pagetables?at=0&space=4096", "/v1/registers?vcpu=2147483647"} {
		if status, body := h.rawRequest("GET", path, ""); status != http.StatusNotImplemented { // the fake is no machine
			t.Errorf("%s: status %d, %s", path, status, body)
		}
	}
}

// TestOperations: each route says what the document needs, and what its errors need.
func TestOperations(t *testing.T) {
	for _, o := range Operations() {
		where := o.Method + " " + o.Path
		if o.Summary == "" || len(o.Answers) == 0 {
			t.Errorf("%s: no summary or no answer", where)
		}
		if len(o.Query) > 0 && o.Method != http.MethodDelete && !slices.Contains(o.Refusals, http.StatusBadRequest) {
			t.Errorf("%s has a query, and cannot refuse it", where)
		}
		for _, p := range o.Query {
			if p.wrong == "" && (p.Kind != Text && p.Kind != Texts || p.Enum != nil) {
				t.Errorf("%s %s: nothing is said about a wrong value", where, p.Name)
			}
			if p.Required && p.missing == "" {
				t.Errorf("%s %s: nothing is said where it is missing", where, p.Name)
			}
		}
		for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(o.Path, -1) {
			if PathParameters()[m[1]].Description == "" {
				t.Errorf("%s: nothing is said about %s", where, m[1])
			}
		}
	}
}
