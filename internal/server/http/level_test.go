package http

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestLevels: each answer says which level of the API it is of, and a client that says that it is too old is refused in one line, but
// for the question of what it should be.
func TestLevels(t *testing.T) {
	h := serveFake(t, nil)
	old := api.Level{Major: api.OldestClient.Major, Minor: api.OldestClient.Minor - 1}
	for _, tc := range []struct {
		method, path, says string
		status             int
		code               api.Code
	}{
		{"GET", "/v1/guest", "", 200, ""},
		{"GET", "/v1/guest", api.Current.String(), 200, ""},
		{"GET", "/v1/guest", "1.9999", 200, ""},
		{"GET", "/v1/nothing", api.Current.String(), 404, "no_route"},
		{"DELETE", "/v1/guest", "", 405, "method_not_allowed"},
		{"GET", "/metrics", "", 200, ""},
		{"GET", "/v1/guest", old.String(), 426, "client_too_old"},
		{"GET", "/v1/guest", "0.9", 426, "client_too_old"},
		{"POST", "/v1/events", old.String(), 426, "client_too_old"},
		{"GET", "/v1/nothing", old.String(), 426, "client_too_old"},
		{"GET", "/version", old.String(), 200, ""},
		{"GET", "/v1/guest", "new", 400, "bad_value"},
		{"GET", "/v1/guest", "1.0.1", 400, "bad_value"},
		{"GET", "/version", "new", 200, ""},
	} {
		raw := tc.method + " " + tc.path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
		if tc.says != "" {
			raw += api.LevelHeader + ": " + tc.says + "\r\n"
		}
		resp, err := http.ReadResponse(bufio.NewReader(h.dial(raw+"\r\n")), nil)
		if err != nil {
			t.Fatal(err)
		}
		var got api.ErrorBody
		if resp.StatusCode >= 400 {
			if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
				t.Errorf("%+v: %v", tc, err)
			}
		}
		resp.Body.Close()
		if said := resp.Header.Get(api.LevelHeader); resp.StatusCode != tc.status || got.Error.Code != tc.code || said != api.Current.String() {
			t.Errorf("%+v: status %d, level %q, %+v", tc, resp.StatusCode, said, got)
		}
		want := "this client is too old: it speaks level " + tc.says + " of the API, and guestprobed "
		if e := got.Error; tc.status == http.StatusUpgradeRequired && (!strings.HasPrefix(e.Message, want) || strings.Contains(e.Message+e.Detail, "\n") || e.Errno != "EPROTONOSUPPORT") {
			t.Errorf("%+v: refused by %+v", tc, e)
		}
	}
}
