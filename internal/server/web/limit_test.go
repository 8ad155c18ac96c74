package web_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestHalfOpenConnections: however many connections are open on which nothing comes, or that read nothing, the page can be opened, and who
// has it open goes on with it, also on connections that are new.
func TestHalfOpenConnections(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "answer") })
	addr := strings.TrimPrefix(s.url, "http://")
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	flood := func(send string) {
		t.Helper()
		for range 600 {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
			if send != "" {
				_, _ = io.WriteString(c, send) // it may be closed already
			}
		}
	}
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(hc *http.Client, path string, header ...string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := hc.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, send := range []string{
		"", "G", "GET / HTTP/1.1\r\nHost: x", fmt.Sprintf("POST /session HTTP/1.1\r\nHost: %s\r\nContent-Length: 100\r\n\r\n{", addr),
		strings.Repeat(fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", addr), 50),
	} {
		flood(send)
		if text := get(fresh, "/"); !strings.Contains(text, "<html") && !strings.Contains(text, "<!doctype") && !strings.Contains(text, "<!DOCTYPE") {
			t.Errorf("behind %.20q: %.60q", send, text)
		}
	}
	cookie, key := s.login(s.token())
	kept := &http.Client{Transport: &http.Transport{}}
	defer kept.CloseIdleConnections()
	if text := get(kept, "/v1/x", "Cookie", cookie, "Guestprobe-Key", key); text != "answer" {
		t.Fatalf("%q", text)
	}
	mine, err := net.Dial("tcp", addr) // a connection that has shown the cookie stays open
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	ask := func() {
		t.Helper()
		_ = mine.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(mine, "GET /v1/x HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\nGuestprobe-Key: %s\r\n\r\n", addr, cookie, key)
		resp, err := http.ReadResponse(bufio.NewReader(mine), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil || string(b) != "answer" {
			t.Fatalf("%q, %v", b, err)
		}
	}
	ask()
	flood("")
	ask()
	if text := get(fresh, "/v1/x", "Cookie", cookie, "Guestprobe-Key", key); text != "answer" {
		t.Errorf("%q", text)
	}
}
