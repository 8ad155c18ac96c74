package cli

import (
	"net"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdListen listens on a socket without accepting connections, like a service manager, or leaves a socket on which
// no process listens:
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
