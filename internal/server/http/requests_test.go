package http

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// requestsEnv sets how many requests TestRequests sends.
const requestsEnv = "GUESTPROBE_REQUESTS"

// requester makes requests that are right for the most part.
type requester struct {
	*rand.Rand
	object string
}

func (g *requester) pick(of ...string) string { return of[g.IntN(len(of))] }

// symbol is a place's name, mostly one that there is.
func (g *requester) symbol() string {
	return g.pick("vfs_read", "vfs_read", "schedule", "user_hot", "user_hot", "do_fork", "do_exit", "memset", "nosuch", "", "x y", "\x00", strings.Repeat("a", 300))
}

func (g *requester) name() string {
	return g.pick("a", "b", "g/a", "g/b", "1", "2", "99999999999999999999", "bpf/count", "nosuch", "%2f", "..", "*", "a%00b", "é")
}

func (g *requester) def() string {
	return g.pick("p:", "p:g/", "r:", "r4:", "p", "w:", "q:", "") + g.pick("a", "b", "c", "d", "") + " " + g.symbol() + g.pick("", "", "+4", "+0xffffffffffffffff", "-1", "+1") +
		g.pick("", "", " fd=%di", " $comm", " x=+0(%di):string", " $retval", " @0x0:u8", " a=%di a=%si", " $stack9999999", " \\1")
}

func (g *requester) spec() map[string]any {
	s := map[string]any{"def": g.def()}
	for _, f := range []string{"disabled", "post", "regs", "onHost", "stay", "emulate"} {
		if g.IntN(8) == 0 {
			s[f] = true
		}
	}
	if g.IntN(5) == 0 {
		s["filter"] = g.pick("fd == 3", "common_cpu == 1", "(", "fd ~ \"*\"", "nosuch > 1", strings.Repeat("(", 1000))
	}
	if g.IntN(12) == 0 {
		s[g.pick("space", "args", "mirror", "mirrorStack", "nosuch")] = []any{"0x1000", 1, "fd:s32", "vfs_read", nil, -1, []string{"a:u64"}, 1e300}[g.IntN(8)]
	}
	return s
}

// request is a method, a path with a query, and a body.
func (g *requester) request() (method, path, body string) {
	all := routes()
	r := all[g.IntN(len(all))]
	method = r.Method
	if g.IntN(20) == 0 {
		method = g.pick("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "BREW")
	}
	path = strings.NewReplacer("{probe}", url.PathEscape(g.name()), "{map}", url.PathEscape(g.pick("1", "2", "counts", "nosuch", "-1"))).Replace(r.Path)
	if len(r.Query) > 0 && g.IntN(3) > 0 {
		q := r.Query[g.IntN(len(r.Query))].Name
		path += "?" + url.QueryEscape(q) + "=" + url.QueryEscape(g.pick(g.symbol(), g.name(), "1", "-1", "true", "*read*", "[", "0xffffffff80200000", "func"))
	}
	if r.Path == "/v1/guest/console" {
		path = r.Path // not to be followed for ever
	}
	var v any
	switch r.Path {
	case "/v1/guest/reset":
		if g.IntN(20) > 0 {
			return "GET", "/v1/guest", ""
		}
		v = map[string]any{"paused": g.IntN(3) == 0}
	case "/v1/guest/call":
		v = map[string]any{"symbol": g.symbol(), "timeoutMs": g.IntN(40) - 1, "args": []string{"0x3", "0x0", "0x10"}}
	case "/v1/probes":
		v = g.spec()
		if g.IntN(2) == 0 {
			v = map[string]any{"probes": []any{g.spec(), g.spec(), g.spec()}[:g.IntN(4)]}
		}
	case "/v1/events":
		v = map[string]any{"names": []string{g.name()}}
		if g.IntN(2) == 0 {
			v = map[string]any{"probes": []any{g.spec()}}
		}
	case "/v1/probes/{probe}", "/v1/kprobes/enabled":
		v = map[string]any{"enabled": g.IntN(3) > 0}
	case "/v1/kprobes/optimization":
		v = map[string]any{"enabled": g.IntN(3) > 0}
	case "/v1/programs":
		obj := []byte(g.object)
		if g.IntN(3) > 0 {
			obj[g.IntN(len(obj))] ^= byte(1 << g.IntN(8))
		}
		v = map[string]any{"object": base64.StdEncoding.EncodeToString(obj)}
	}
	if method == "GET" || method == "DELETE" || v == nil {
		return method, path, ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	if g.IntN(10) == 0 {
		b = b[:g.IntN(len(b)+1)]
	}
	return method, path, string(b)
}

// TestRequests sends requests whose routes and methods are mostly right, several at a
// time, to a daemon with a guest that runs: whatever they ask for, none is answered by an
// internal error, and the daemon ends in good order.
func TestRequests(t *testing.T) {
	h := serveMachine(t, 2)
	n := 1500
	if v := os.Getenv(requestsEnv); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			t.Fatalf("%s: %v", requestsEnv, err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const clients = 4
	object := string(objectFile(t, "count.o"))
	var wg sync.WaitGroup
	for i := range clients {
		g := &requester{Rand: rand.New(rand.NewPCG(seed, uint64(i))), object: object}
		wg.Go(func() {
			tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", h.path)
			}}
			defer tr.CloseIdleConnections()
			for range n / clients {
				method, path, body := g.request()
				status, answer, err := send(h.ctx, tr, method, path, body)
				if err != nil || status == http.StatusInternalServerError {
					t.Errorf("%s %s %.200s: %d %.300s, %v", method, path, body, status, answer, err)
				}
			}
		})
	}
	wg.Wait()
	if log := h.log.String(); strings.Contains(log, "panic in request") {
		t.Errorf("the daemon's log has a panic:\n%.4000s", log[strings.Index(log, "panic in request"):])
	}
}

// send sends a request and returns its answer; of a stream only the beginning.
func send(ctx context.Context, tr *http.Transport, method, path, body string) (status int, answer string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		return 0, "", fmt.Errorf("a request that is none: %w", err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	if strings.HasSuffix(resp.Header.Get("Content-Type"), "ndjson") {
		return resp.StatusCode, "", nil
	}
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}
