package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/guestprobe/guestprobe/internal/server/web"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// served is a site over an API of the test's.
type served struct {
	*web.Site
	url string
	ctx context.Context
	t   *testing.T
}

func serve(t *testing.T, api http.HandlerFunc) *served {
	t.Helper()
	return serveLogged(t, api, slog.DiscardHandler)
}

func serveLogged(t *testing.T, api http.HandlerFunc, log slog.Handler) *served {
	t.Helper()
	s, err := web.New(web.Config{API: api, MaxConns: 100, Stall: time.Hour, Log: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewUnstartedServer(nil)
	hs.Config, hs.Listener = s.Server(), s.Listener(hs.Listener)
	hs.Start()
	t.Cleanup(func() {
		over, end := context.WithCancel(context.Background())
		end()
		s.Close(over)
		hs.Close()
	})
	return &served{s, hs.URL, patience.Context(t), t}
}

type whoKey struct{}

// token is a new one, of somebody.
func (s *served) token() string {
	return s.Token(func(ctx context.Context) context.Context { return context.WithValue(ctx, whoKey{}, "somebody") })
}

// ask sends a request and returns the answer's status and text.
func (s *served) ask(method, path, body string, header ...string) (int, string, *http.Response) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	if h := r.Header.Get("Host"); h != "" {
		r.Host = h
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp
}

// login shows a token, and returns the cookie and the key.
func (s *served) login(token string) (cookie, key string) {
	s.t.Helper()
	status, text, resp := s.ask("POST", "/session", fmt.Sprintf(`{"token":%q}`, token))
	var got struct{ Key string }
	if err := json.Unmarshal([]byte(text), &got); status != http.StatusOK || err != nil {
		s.t.Fatalf("a new token: %d %s", status, text)
	}
	c := resp.Cookies()
	if len(c) != 1 || !c[0].HttpOnly || c[0].SameSite != http.SameSiteStrictMode || c[0].Path != "/" {
		s.t.Fatalf("cookies are %v", c)
	}
	return c[0].Name + "=" + c[0].Value, got.Key
}

// TestGuard: who may ask for what.
func TestGuard(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, "%s %s by %v with %q, cookie %q", r.Method, r.URL, r.Context().Value(whoKey{}), b, r.Header.Get("Cookie"))
	})
	port := s.url[strings.LastIndexByte(s.url, ':')+1:]
	token := s.token()
	cookie, key := s.login(token)
	if _, other := s.login(s.token()); other == key {
		t.Error("two sessions have one key")
	}
	in := []string{"Cookie", cookie, "Guestprobe-Key", key}
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		text                     string
	}{
		{"page", "GET", "/", "", nil, 200, "<!DOCTYPE html>"},
		{"by another name of loopback", "GET", "/", "", []string{"Host", "localhost:" + port}, 200, "<!DOCTYPE html>"},
		{"by a link elsewhere", "GET", "/", "", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate"}, 200, "<!DOCTYPE html>"},
		{"no such file", "GET", "/nothing.js", "", nil, 404, "404"},
		{"file above", "GET", "/../site.go", "", nil, 404, "404"},
		{"file posted", "POST", "/main.js", "", nil, 404, "404"},
		{"API", "POST", "/v1/x?a=b", "hello", in, 200, `POST /v1/x?a=b by somebody with "hello", cookie ""`},
		{"API from the page", "GET", "/v1/x", "", append([]string{"Origin", s.url, "Sec-Fetch-Site", "same-origin"}, in...), 200, "GET /v1/x"},
		{"no token", "GET", "/v1/x", "", nil, 401, "the page has no valid token"},
		{"no key", "GET", "/v1/x", "", []string{"Cookie", cookie}, 401, "the page has no valid token"},
		{"no cookie", "GET", "/v1/x", "", []string{"Guestprobe-Key", key}, 401, "the page has no valid token"},
		{"wrong cookie", "GET", "/v1/x", "", []string{"Cookie", cookie + "A", "Guestprobe-Key", key}, 401, "the page has no valid token"},
		{"wrong Host", "GET", "/v1/x", "", append([]string{"Host", "evil.example:" + port}, in...), 403, "under its own address only"},
		{"wrong Host of a file", "GET", "/", "", []string{"Host", "evil.example:" + port}, 403, "under its own address only"},
		{"wrong port", "GET", "/v1/x", "", append([]string{"Host", "127.0.0.1:1"}, in...), 403, "under its own address only"},
		{"wrong Origin", "POST", "/v1/x", "", append([]string{"Origin", "http://evil.example"}, in...), 403, "from another page"},
		{"Origin of another port", "POST", "/v1/x", "", append([]string{"Origin", "http://127.0.0.1:1"}, in...), 403, "from another page"},
		{"no Origin", "POST", "/v1/x", "", append([]string{"Origin", "null"}, in...), 403, "from another page"},
		{"wrong site", "GET", "/v1/x", "", append([]string{"Sec-Fetch-Site", "same-site"}, in...), 403, "from another page"},
		{"a script elsewhere", "GET", "/main.js", "", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}, 403, "from another page"},
		{"token used twice", "POST", "/session", fmt.Sprintf(`{"token":%q}`, token), nil, 403, "this token was used before"},
		{"no such token", "POST", "/session", `{"token":"x"}`, nil, 403, "this token was used before"},
		{"empty token", "POST", "/session", `{}`, nil, 403, "this token was used before"},
		{"bad token", "POST", "/session", `[`, nil, 400, "no token"},
		{"socket without a token", "GET", "/socket", "", []string{"Origin", s.url, "Connection", "Upgrade", "Upgrade", "websocket"}, 401, "the page has no valid token"},
		{"socket from nowhere", "GET", "/socket", "", append([]string{"Connection", "Upgrade", "Upgrade", "websocket"}, in...), 401, "the page has no valid token"},
		{"socket from elsewhere", "GET", "/socket", "", append([]string{"Origin", "http://evil.example", "Connection", "Upgrade", "Upgrade", "websocket"}, in...), 403, "from another page"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text, resp := s.ask(c.method, c.path, c.body, c.header...)
			if status != c.status || !strings.Contains(text, c.text) {
				t.Errorf("got %d %s, want %d %s", status, text, c.status, c.text)
			}
			if csp := resp.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'; script-src 'self'; style-src 'self';") || strings.Contains(csp, "unsafe") {
				t.Errorf("policy %q", csp)
			}
		})
	}
	// Of tokens that nobody shows the oldest end.
	first := s.token()
	for range 16 {
		s.token()
	}
	if status, text, _ := s.ask("POST", "/session", fmt.Sprintf(`{"token":%q}`, first)); status != http.StatusForbidden {
		t.Errorf("the oldest of too many tokens: %d %s", status, text)
	}
}

// TestRefusedLog: whoever is refused again and again does not fill the log.
func TestRefusedLog(t *testing.T) {
	var log bytes.Buffer
	s := serveLogged(t, func(http.ResponseWriter, *http.Request) {}, slog.NewTextHandler(&log, nil))
	for range 20 {
		if status, text, _ := s.ask("GET", "/v1/"+strings.Repeat("x", 4000), "", "Host", "evil.example"); status != http.StatusForbidden {
			t.Fatalf("%d %s", status, text)
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || len(got) > 1000 || !strings.Contains(got, `host=evil.example origin="" path=/v1/xxx`) {
		t.Errorf("the log has\n%s", got)
	}
}

// dial opens a socket with a first message.
func (s *served) dial(cookie, first string) *websocket.Conn {
	s.t.Helper()
	c, _, err := websocket.Dial(s.ctx, s.url+"/socket", &websocket.DialOptions{HTTPHeader: http.Header{"Cookie": {cookie}, "Origin": {s.url}}})
	if err != nil {
		s.t.Fatal(err)
	}
	c.SetReadLimit(-1)
	s.t.Cleanup(func() { c.CloseNow() })
	if err := c.Write(s.ctx, websocket.MessageText, []byte(first)); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// TestSocket: a stream comes whole, also a refusal; what is no ask of the page is cut off.
func TestSocket(t *testing.T) {
	big := strings.Repeat("0123456789abcde\n", 1<<16) // more than may be ahead
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/stream" {
			w.WriteHeader(http.StatusTeapot)
		}
		b, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s by %v with %q %v\n", r.Method, r.URL, r.Context().Value(whoKey{}), b, err)
		io.WriteString(w, big)
	})
	cookie, key := s.login(s.token())
	for path, status := range map[string]string{"/v1/stream?x=y": "200", "/v1/other": "418"} {
		c := s.dial(cookie, fmt.Sprintf(`{"key":%q,"method":"POST","path":%q,"body":{"a":1}}`, key, path))
		var texts []string
		var got bytes.Buffer
		for {
			kind, b, err := c.Read(s.ctx)
			if err != nil {
				if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
					t.Errorf("the socket ends with %v", err)
				}
				break
			}
			if kind == websocket.MessageText {
				texts = append(texts, string(b))
				continue
			}
			got.Write(b)
			if err := c.Write(s.ctx, websocket.MessageText, []byte(strconv.Itoa(len(b)))); err != nil && got.Len() < len(big) {
				t.Fatal(err)
			}
		}
		if want := fmt.Sprintf("POST %s by somebody with %q <nil>\n", path, `{"a":1}`) + big; got.String() != want {
			t.Errorf("%d bytes, %.80q, want %d, %.80q", got.Len(), got.String(), len(want), want)
		}
		if strings.Join(texts, " ") != `{"status":`+status+`} {}` {
			t.Errorf("messages %q", texts)
		}
	}
	for _, first := range []string{
		`{"key":"x","method":"GET","path":"/v1/stream"}`, `{`, fmt.Sprintf(`{"key":%q,"method":"GET","path":"/metrics"}`, key), fmt.Sprintf(`{"key":%q,"method":"G E T","path":"/v1/stream"}`, key),
		fmt.Sprintf(`{"key":%q,"method":"GET","path":"http://other/v1/stream "}`, key),
	} {
		if _, b, err := s.dial(cookie, first).Read(s.ctx); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
			t.Errorf("%s: %q, %v", first, b, err)
		}
	}
}

// TestSlowClient: a page that deals with nothing holds a stream up to its deadline, and gets its end yet; one that goes
// ends it.
func TestSlowClient(t *testing.T) {
	result := make(chan error, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		part := make([]byte, 64<<10)
		if r.URL.Path == "/v1/forever" {
			for {
				if _, err := w.Write(part); err != nil {
					result <- err
					return
				}
			}
		}
		sent := 0
		for {
			// What is ahead decides, not the time: a write that need not wait is done.
			if err := rc.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
				t.Error(err)
			}
			if sent+len(part) <= 512<<10 {
				_ = rc.SetWriteDeadline(time.Time{})
			}
			n, err := w.Write(part)
			sent += n
			if err != nil {
				result <- err
				break
			}
		}
		_ = rc.SetWriteDeadline(time.Now().Add(time.Hour))
		if _, err := io.WriteString(w, "the end"); err != nil {
			t.Error(err)
		}
	})
	cookie, key := s.login(s.token())
	c := s.dial(cookie, fmt.Sprintf(`{"key":%q,"method":"GET","path":"/v1/slow"}`, key))
	var got bytes.Buffer
	for {
		kind, b, err := c.Read(s.ctx)
		if err != nil {
			break
		}
		if kind == websocket.MessageBinary {
			got.Write(b)
		}
	}
	if err := <-result; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the write ends with %v", err)
	}
	if got.Len() != 512<<10+len("the end") || !strings.HasSuffix(got.String(), "the end") {
		t.Errorf("%d bytes came", got.Len())
	}
	c = s.dial(cookie, fmt.Sprintf(`{"key":%q,"method":"GET","path":"/v1/forever"}`, key))
	if _, _, err := c.Read(s.ctx); err != nil {
		t.Fatal(err)
	}
	c.CloseNow()
	if err := <-result; err == nil {
		t.Error("a stream to nobody goes on")
	}
}
