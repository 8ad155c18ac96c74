package http

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/guestprobe/guestprobe/internal/server/web"
	graph "github.com/guestprobe/guestprobe/internal/show/profile"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// page is the page in the browser. It is served from the first request for it
// on. Any goroutine may use it.
type page struct {
	log *slog.Logger
	opt *options
	api http.Handler // of all routes

	mu     sync.Mutex
	closed bool
	site   *web.Site // nil: not requested yet
	http   *http.Server
	addr   string
	served chan struct{}
}

// openPage returns a URL of the page that works for one browser.
func (s *server) openPage(w http.ResponseWriter, r *http.Request) error {
	if r.Context().Value(fromPage{}) != nil {
		return &api.Error{Code: api.CodeForbidden, Errno: "EACCES", Message: "the page gives no access to others", Detail: "'guestprobe web' does"}
	}
	if err := s.page.serve(); err != nil {
		return err
	}
	who := requestPeer(r)
	token := s.page.site.Token(func(ctx context.Context) context.Context {
		return context.WithValue(context.WithValue(ctx, peerKey{}, who), fromPage{}, true)
	})
	writeJSON(w, http.StatusOK, api.Page{URL: "http://" + s.page.addr + "/#token=" + token})
	return nil
}

// fromPage is the context key of requests from the page.
type fromPage struct{}

// serve starts to serve the page, if it is not served yet.
func (p *page) serve() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosing
	}
	if p.site != nil {
		return nil
	}
	l, err := net.Listen("tcp", p.opt.webListen)
	if err == nil && !onLoopback(l.Addr().String()) { // the name resolves differently now
		err = errors.Join(fmt.Errorf("%v is not on loopback", l.Addr()), l.Close())
	}
	if err != nil {
		return &api.Error{Code: api.CodeUnavailable, Errno: "EADDRNOTAVAIL", Message: "the page cannot be served: " + err.Error(), Detail: "guestprobed's --web-listen says where"}
	}
	p.site, err = web.New(web.Config{
		API: p.api, Files: map[string][]byte{
			"flame.js": []byte(graph.Script), "flame.css": []byte(graph.Style), "flame.html": []byte(graph.EmptyPage("flame-frame.js", "flame.css", "flame-theme.css")),
		},
		MaxConns: p.opt.maxConns, Stall: p.opt.stallTime, Log: p.log,
	})
	if err != nil {
		l.Close()
		return err
	}
	p.http, p.addr, p.served = p.site.Server(), l.Addr().String(), make(chan struct{})
	go func() {
		defer close(p.served)
		if err := p.http.Serve(p.site.Listener(l)); !errors.Is(err, http.ErrServerClosed) {
			p.log.Error("the page is served no more", "err", err)
		}
	}()
	p.log.Info("page", "address", p.addr)
	return nil
}

// close closes the page: streams have until the end of ctx to report their end.
func (p *page) close(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.site == nil {
		return
	}
	p.site.Close(ctx)
	if p.http.Shutdown(ctx) != nil {
		p.http.Close()
	}
	<-p.served
}
