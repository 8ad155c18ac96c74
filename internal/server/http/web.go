package http

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/guestprobe/guestprobe/internal/server/web"
	graph "github.com/guestprobe/guestprobe/internal/show/profile"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// page is the page in the browser, which is served from the first time on that somebody asks for it. The zero value is ready.
type page struct {
	mu     sync.Mutex
	closed bool
	site   *web.Site // nil: nobody has asked for it
	http   *http.Server
	addr   string
	served chan struct{}
}

// openPage returns an address of the page that is good for one browser.
func (s *server) openPage(w http.ResponseWriter, r *http.Request) error {
	if r.Context().Value(fromPage{}) != nil {
		return &api.Error{Code: api.CodeForbidden, Errno: "EACCES", Message: "the page gives no access to others", Detail: "'guestprobe web' does"}
	}
	if err := s.servePage(); err != nil {
		return err
	}
	who := requestPeer(r)
	token := s.page.site.Token(func(ctx context.Context) context.Context {
		return context.WithValue(context.WithValue(ctx, peerKey{}, who), fromPage{}, true)
	})
	writeJSON(w, http.StatusOK, api.Page{URL: "http://" + s.page.addr + "/#token=" + token})
	return nil
}

// fromPage is the key of a context of a request of the page.
type fromPage struct{}

// servePage begins to serve the page, if nobody has yet.
func (s *server) servePage() error {
	p := &s.page
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosing
	}
	if p.site != nil {
		return nil
	}
	l, err := net.Listen("tcp", s.opt.webListen)
	if err == nil && !onLoopback(l.Addr().String()) { // a name that somebody has changed
		err = errors.Join(fmt.Errorf("%v is not on loopback", l.Addr()), l.Close())
	}
	if err != nil {
		return &api.Error{Code: api.CodeUnavailable, Errno: "EADDRNOTAVAIL", Message: "the page cannot be served: " + err.Error(), Detail: "guestprobed's --web-listen says where"}
	}
	p.site, err = web.New(web.Config{
		API: s.api, Files: map[string][]byte{
			"flame.js": []byte(graph.Script), "flame.css": []byte(graph.Style), "flame.html": []byte(graph.Empty("flame-frame.js", "flame.css", "flame-theme.css")),
		},
		MaxConns: s.opt.maxConns, Stall: s.opt.stallTime, Log: s.log,
	})
	if err != nil {
		l.Close()
		return err
	}
	p.http, p.addr, p.served = p.site.Server(), l.Addr().String(), make(chan struct{})
	go func() {
		defer close(p.served)
		if err := p.http.Serve(p.site.Listener(l)); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the page is served no more", "err", err)
		}
	}()
	s.log.Info("page", "address", p.addr)
	return nil
}

// close ends the page: streams have until the end of ctx to say that they have ended.
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
