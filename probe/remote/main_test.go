package remote_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/internal/cli/child"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// socket is the socket of the daemon that the examples use: a guestprobed with the
// built-in guest.
var socket string

// asDaemon is the environment variable under which this binary is guestprobed.
const asDaemon = "GUESTPROBE_TEST_IS_DAEMON"

// TestMain starts the daemon of the examples, runs the tests, and fails if goroutines
// remain. Without /dev/kvm there are no examples and no daemon.
func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		os.Exit(daemon.Main(nil))
	}
	end := func() error { return nil }
	if kvmtest.Examples() {
		var err error
		if end, err = startDaemon(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	} else {
		fmt.Fprintln(os.Stderr, "SKIP: the examples need a usable /dev/kvm (GUESTPROBE_REQUIRE_KVM=1 makes this a failure)")
	}
	code := m.Run()
	for _, err := range []error{end(), goleak.Find()} {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// startDaemon starts the daemon. end stops it.
func startDaemon() (end func() error, err error) {
	dir, err := os.MkdirTemp("", "gp")
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	socket = filepath.Join(dir, "s")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var said bytes.Buffer // to be read after the daemon's end
	d, err := child.Start(ctx, child.Options{
		Program: self, Args: []string{"--socket", socket, "--vcpus", "2", "--tick", "20ms"},
		Env: append(os.Environ(), asDaemon+"=1"), Output: &said,
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, said.Bytes())
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		defer os.RemoveAll(dir)
		if err := d.End(ctx, syscall.SIGTERM); err != nil {
			d.Kill()
			return fmt.Errorf("%w\n%s", err, said.Bytes())
		}
		return nil
	}, nil
}
