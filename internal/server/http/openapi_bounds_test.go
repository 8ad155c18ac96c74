package http

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestOpenAPIBounds sends each number, length and count that the document bounds: at the
// bound it is no bad value, behind it it is one.
func TestOpenAPIBounds(t *testing.T) {
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
	seen := map[string]bool{} // in how many places the same schema stands does not matter
	forEachMap("", readYAML(t, openapi), func(name string, m yamlMap) {
		if in, ok := m["name"].(string); ok && m["in"] != nil {
			name, m = in, m["schema"].(yamlMap)
		}
		for _, b := range []string{"minimum", "maximum", "maxLength", "maxItems"} {
			n, ok := m[b].(int)
			what := fmt.Sprintf("%s %s %d", name, b, n)
			if !ok || name == "schema" || seen[what] {
				continue
			}
			seen[what] = true
			over := n + 1
			switch b {
			case "minimum":
				over = n - 1
			case "maxItems":
				name += " items"
			}
			ask := requests[name]
			if ask == nil {
				t.Errorf("nothing here tries the bound %s", what)
				continue
			}
			for _, v := range []int{n, over} {
				r := ask(v)
				status, body := h.rawRequest(r.method, r.path, r.body)
				if bad := status == http.StatusBadRequest; bad != (v == over) {
					t.Errorf("%s, %d: status %d, %s", what, v, status, body)
				}
				if status, body := h.rawRequest("DELETE", "/v1/probes", ""); status != http.StatusOK {
					t.Fatalf("detach all: status %d, %s", status, body)
				}
			}
		}
	})
	if len(seen) < 20 {
		t.Errorf("only %d bounds are found", len(seen))
	}
}
