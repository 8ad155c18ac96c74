package http

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Core answers requests about a guest that can only be looked at, that of a
// snapshot's file or of another VMM, as a daemon does about its own. It supports
// all requests that only read, in this process and without KVM.
type Core struct {
	server   *server
	http     *http.Server
	arrivals arrivals
	served   chan struct{}
	end      func() error // of what the guest is read from, or nil
}

// OpenCore opens the snapshot or ELF core at path. Its guest's image is read
// from its old path, or from the file named image. Errors are about the two
// files.
func OpenCore(path, image string) (*Core, error) {
	o := defaultOptions()
	o.restore, o.given = path, func(string) bool { return false }
	snap, err := readSnapshot(coreFlag, &o)
	if err != nil {
		return nil, err
	}
	switch {
	case image == "":
	case snap.Config.Linux != nil:
		o.kernel = image
	default:
		o.guest = image
	}
	o.disks, o.initrd = nil, ""
	prog, err := loadProgram(&o)
	if err != nil {
		return nil, fmt.Errorf("--core %s: the guest's image (--core-image names another file): %w", path, err)
	}
	log := slog.New(slog.DiscardHandler)
	m, err := machine.Open(machine.Config{Image: prog.image, Linux: prog.linux, Log: log}, snap)
	if err != nil {
		return nil, fmt.Errorf("--core %s: %w", path, err)
	}
	s := newServer(log, o, newGuestOf(m, &o, prog, log), func() uint64 { return 0 })
	s.saved = snap
	return newCore(s, nil), nil
}

// newCore serves s. The guest is closed before end is called.
func newCore(s *server, end func() error) *Core {
	c := &Core{
		server: s, http: &http.Server{Handler: s.handler(), ConnContext: withConn},
		arrivals: arrivals{next: make(chan net.Conn), closed: make(chan struct{})}, served: make(chan struct{}), end: end,
	}
	s.conns.Listener = &c.arrivals
	go func() {
		defer close(c.served)
		_ = c.http.Serve(s.conns) // it ends with Close
	}()
	return c
}

// InsideNotes describes the vCPUs and tasks of the guest that were inside a
// probe's handlers when it ended. Their registers are the handlers' registers.
func (c *Core) InsideNotes() []string {
	if c.server.saved == nil {
		return nil
	}
	return c.server.saved.Config.Inside
}

// Dial returns a connection to the core. Any goroutine.
func (c *Core) Dial(ctx context.Context) (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "core")
		end, e := net.FileConn(f)
		f.Close()
		if ends[i] = end; e != nil {
			err = e
		}
	}
	if err == nil {
		select {
		case c.arrivals.next <- ends[1]:
			return ends[0], nil
		case <-c.arrivals.closed:
			err = net.ErrClosed
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	for _, end := range ends {
		if end != nil {
			end.Close()
		}
	}
	return nil, err
}

// Close closes the core and ends requests that are being served.
func (c *Core) Close() {
	c.http.Close()
	c.arrivals.Close()
	<-c.served
	// A core has no code to restore, and no client to report an error to.
	_ = c.server.probes.Close()
	_ = c.server.guest.Close(context.Background())
	if c.end != nil {
		_ = c.end()
	}
}

// arrivals is a listener whose connections come from this process.
type arrivals struct {
	next   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Accept returns the next.
func (a *arrivals) Accept() (net.Conn, error) {
	select {
	case c := <-a.next:
		return c, nil
	case <-a.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and Dial.
func (a *arrivals) Close() error {
	a.once.Do(func() { close(a.closed) })
	return nil
}

// Addr returns an address without a name.
func (a *arrivals) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// looks are the routes for a guest of a file.
var looks = map[string]bool{
	"GET /version": true, "GET /v1/guest": true, "POST /v1/guest/save": true, "GET /v1/symbols": true, "GET /v1/tasks": true,
	"GET /v1/registers": true, "GET /v1/memory": true, "GET /v1/backtraces": true, "GET /v1/pagetables": true,
	"GET /v1/disas": true, "GET /v1/variables": true, "GET /v1/blacklist": true,
}

// checkLooksOnly rejects requests that are not possible with a guest that can
// only be looked at. For the guest of another VMM it reads the guest again.
func (s *server) checkLooksOnly(rt route) error {
	name := rt.Method + " " + rt.Path
	switch {
	case s.saved != nil && !looks[name]:
		return &api.Error{
			Code: api.CodeUnavailable, Errno: "EROFS", Message: "the guest is one of a file (--core): it is read-only",
			Detail: "'guestprobed --restore FILE' resumes it",
		}
	case s.vm == nil:
		return nil
	case !vmLooks[name]:
		return &api.Error{Code: api.CodeNotOurs, Errno: "EROFS", Message: "the guest belongs to another VMM (--vm): it is read-only",
			Detail: "regs, mem, bt, pt, disas, tasks, symbols, vars, profile and guest status read it"}
	case rt.Path == "/version", rt.Method == http.MethodDelete, rt.Path == "/v1/profile", rt.Path == "/v1/daemon", rt.Path == "/v1/probes", rt.Path == "/v1/kprobes/enabled":
		return nil // these read nothing, or by themselves
	}
	return s.vm.Refresh()
}
