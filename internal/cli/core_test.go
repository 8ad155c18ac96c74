package cli

import (
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdOffline checks that a command prints the same for the daemon's guest as for its snapshot or ELF core, opened
// without a daemon, byte for byte, as text and as JSON. With ! it checks that the command fails:
//
//	offline a.gps,a.core bt --all
func cmdOffline(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: offline file[,file...] command [arg...]")
	}
	says := func(args []string) string {
		err := ts.Exec("guestprobe", args...)
		if (err != nil) != neg {
			ts.Fatalf("guestprobe %s: %v", strings.Join(args, " "), err)
		}
		return ts.ReadFile("stdout") + ts.ReadFile("stderr")
	}
	socket := ts.Getenv("GUESTPROBE_SOCKET")
	for _, format := range []string{"table", "json"} {
		command := append(args[1:len(args):len(args)], "--format", format)
		live := says(command)
		ts.Setenv("GUESTPROBE_SOCKET", ts.MkAbs("none"))
		for _, file := range strings.Split(args[0], ",") {
			if saved := says(append([]string{"--core", file}, command...)); live != saved {
				ts.Fatalf("%s: the guest:\n%s\n%s:\n%s", strings.Join(command, " "), live, file, saved)
			}
		}
		ts.Setenv("GUESTPROBE_SOCKET", socket)
	}
}
