package http

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestOpenAPIBounds sends each number, length and count that the document bounds: at the
// bound it is no bad value, behind it it is one.
func TestOpenAPIBounds(t *testing.T) {
	_, text := readYAML(t, openapi)
	h := serveFake(t, nil)
	type request struct{ method, path, body string }
	post := func(path, form string) func(int) request {
		return func(n int) request { return request{"POST", path, fmt.Sprintf(form, n)} }
	}
	requests := map[string]func(n int) request{
		"limit":       func(n int) request { return request{"GET", fmt.Sprintf("/v1/symbols?limit=%d", n), ""} },
		"length":      func(n int) request { return request{"GET", fmt.Sprintf("/v1/memory?at=0&length=%d", n), ""} },
		"timeoutMs":   post("/v1/guest/call", `{"symbol":"do_fork","timeoutMs":%d}`),
		"args":        post("/v1/probes", `{"def":"p vfs_read","args":%d}`),
		"probability": post("/v1/probes", `{"def":"p vfs_read","unsafe":true,"override":{"value":1,"probability":%d}}`),
		"interval":    post("/v1/probes", `{"def":"p vfs_read","unsafe":true,"override":{"value":1,"interval":%d}}`),
		"after":       post("/v1/probes", `{"def":"p vfs_read","unsafe":true,"override":{"value":1,"after":%d}}`),
		"seed":        post("/v1/probes", `{"def":"p vfs_read","unsafe":true,"override":{"value":1,"seed":%d}}`),
		"mirrorStack": post("/v1/probes", `{"def":"p vfs_read","mirror":"do_fork","mirrorStack":%d}`),
		"intervalMs":  post("/v1/counts", `{"names":["nope"],"intervalMs":%d}`),
		"hz":          post("/v1/profile", `{"hz":%d}`),
		"args items": func(n int) request {
			return request{"POST", "/v1/guest/call", `{"symbol":"do_fork","args":[` + strings.TrimSuffix(strings.Repeat(`"0x1",`, n), ",") + `]}`}
		},
		"filter": func(n int) request {
			return request{"POST", "/v1/probes", `{"def":"p vfs_read","filter":"cpu == ` + strings.Repeat("0", n-8) + `1"}`}
		},
	}
	line := regexp.MustCompile(`(?m)^.*?(?:name: )?(\w+)(?:: \{type|, in: query).*$`)
	bound := regexp.MustCompile(`\b(minimum|maximum|maxLength|maxItems): (\d+)`)
	seen := 0
	for _, l := range line.FindAllStringSubmatch(text, -1) {
		for _, b := range bound.FindAllStringSubmatch(l[0], -1) {
			n, err := strconv.Atoi(b[2])
			if err != nil {
				t.Fatal(err)
			}
			name, over := l[1], n+1
			switch b[1] {
			case "minimum":
				over = n - 1
			case "maxItems":
				name += " items"
			}
			ask := requests[name]
			if ask == nil {
				t.Errorf("%s has a bound that nothing here tries: %s", name, l[0])
				continue
			}
			seen++
			for _, v := range []int{n, over} {
				r := ask(v)
				status, body := h.raw(r.method, r.path, r.body)
				if bad := status == http.StatusBadRequest; bad != (v == over) {
					t.Errorf("%s %s %d, %d: status %d, %s", name, b[1], n, v, status, body)
				}
				if status, body := h.raw("DELETE", "/v1/probes", ""); status != http.StatusOK {
					t.Fatalf("detach all: status %d, %s", status, body)
				}
			}
		}
	}
	if want := len(bound.FindAllString(text, -1)); seen != want {
		t.Errorf("%d bounds tried, the document has %d", seen, want)
	}
}
