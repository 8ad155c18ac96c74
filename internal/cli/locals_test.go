package cli

import (
	"net"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdListen listens on a socket, as a service manager does, and takes no connection; or leaves the socket of one that
// does not listen any more:
//
//	listen $SOCKDIR/web.sock
//	listen $SOCKDIR/old.sock gone
func cmdListen(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: listen socket [gone]")
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: args[0], Net: "unix"})
	ts.Check(err)
	l.SetUnlinkOnClose(false)
	if len(args) == 2 {
		ts.Check(l.Close())
		return
	}
	ts.Defer(func() { l.Close() })
}
