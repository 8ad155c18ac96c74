package web

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Limits of sessions.
const (
	maxTokens   = 16
	maxSessions = 64
	tokenTime   = 10 * time.Minute // from the creation of a token until it is shown
)

// sessions are the tokens that no browser has shown yet, and the browsers that
// have shown one.
type sessions struct {
	mu     sync.Mutex
	tokens []token    // the oldest first
	open   []*session // likewise
}

// token opens a session, once.
type token struct {
	text  string
	until time.Time
	as    func(context.Context) context.Context
}

// session is a browser that has shown a token. It knows two secrets. The cookie,
// which no script can read, is sent to every port of its host, so a server of
// another user of this machine may receive it. The key belongs to the page, and
// the browser stores it under the page's address with its port.
type session struct {
	cookie, key string
	as          func(context.Context) context.Context
}

// Token returns a new token, which opens the API to one browser. The contexts of
// its requests are made by as. When there are too many unused tokens, the oldest
// ends.
func (s *Site) Token(as func(context.Context) context.Context) string {
	t := token{rand.Text(), time.Now().Add(tokenTime), as}
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	if s.sessions.tokens = append(s.sessions.tokens, t); len(s.sessions.tokens) > maxTokens {
		s.sessions.tokens = s.sessions.tokens[1:]
	}
	return t.text
}

// redeem creates a session from a token, or returns nil. A token works once.
func (ss *sessions) redeem(text string) *session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for i, t := range ss.tokens {
		if !same(t.text, text) {
			continue
		}
		ss.tokens = append(ss.tokens[:i:i], ss.tokens[i+1:]...)
		if time.Now().After(t.until) {
			return nil
		}
		se := &session{cookie: rand.Text(), key: rand.Text(), as: t.as}
		if ss.open = append(ss.open, se); len(ss.open) > maxSessions {
			ss.open = ss.open[1:]
		}
		return se
	}
	return nil
}

// find returns the session of a request's cookie, or nil.
func (ss *sessions) find(r *http.Request) *session {
	c, err := r.Cookie(cookieName(r))
	if err != nil {
		return nil
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, se := range ss.open {
		if same(se.cookie, c.Value) {
			return se
		}
	}
	return nil
}

// has reports whether this is the session's key.
func (se *session) has(key string) bool { return same(se.key, key) }

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// cookieName includes the port: cookies of all ports of a host are in one jar.
func cookieName(r *http.Request) string {
	return "guestprobe-" + r.Host[strings.LastIndexByte(r.Host, ':')+1:]
}

// begin creates a session from the token in the body.
func (s *Site) begin(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "POST a token", http.StatusMethodNotAllowed)
		return
	}
	var req struct{ Token string }
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&req); err != nil {
		refuse(w, http.StatusBadRequest, "no token", "")
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	se := s.sessions.redeem(req.Token)
	if se == nil {
		s.Log.Warn("a token of the page is refused: it was used before, is too old, or never was one")
		refuse(w, http.StatusForbidden, "this token was used before, or is too old", "'guestprobe web' prints an address with a new one")
		return
	}
	trust(r)
	http.SetCookie(w, &http.Cookie{Name: cookieName(r), Value: se.cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.Header().Set("Content-Type", "application/json")
	// A browser that does not read the answer has lost the token.
	_ = json.NewEncoder(w).Encode(map[string]string{"key": se.key})
}
