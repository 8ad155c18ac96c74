package fleetd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// serveFlags are flags of a server in a new folder.
func serveFlags(t *testing.T) fleet.Serve {
	t.Helper()
	dir := t.TempDir()
	o := fleet.Serve{Listen: "127.0.0.1:0", Store: filepath.Join(dir, "store"), Password: filepath.Join(dir, "creds"), Bounds: fleet.DefaultBounds()}
	o.Bounds.EventsBytes, o.Bounds.MapsBytes = 8<<20, 8<<20
	return o
}

// TestFullDisk: a server that can write no more says so, serves on, starts again at the same port once there is room, and keeps what
// comes then. Until then a write fails: nats-server itself recovers only by a restart.
func TestFullDisk(t *testing.T) {
	o := serveFlags(t)
	so, err := options(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(patience.Context(t))
	defer cancel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	urls := make(chan string, 2)
	run := func() (again bool, err error) {
		return serveOnce(ctx, o, so, log, func(s *server.Server) error {
			urls <- s.ClientURL()
			return nil
		})
	}
	type end struct {
		again bool
		err   error
	}
	ended := make(chan end, 1)
	begin := func() string {
		go func() {
			again, err := run()
			ended <- end{again, err}
		}()
		select {
		case url := <-urls:
			return url
		case e := <-ended:
			t.Fatalf("%+v", e)
		}
		return ""
	}
	url := begin()
	pass, err := password(o.Password)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(url, nats.UserInfo(fleet.User, pass), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	publish := func() error {
		one, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := js.Publish(one, "guestprobe.events.DEFINITION.RUN", make([]byte, 4<<10))
		return err
	}
	if err := publish(); err != nil {
		t.Fatal(err)
	}
	// A write beyond this size fails, as on a disk that is full.
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	limit := func(n uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
	}
	defer limit(was.Cur)
	limit(2 << 10)
	if err := publish(); err == nil {
		t.Fatal("a message is kept that could not be written")
	}
	limit(was.Cur)
	e := <-ended
	if e.err != nil || !e.again {
		t.Fatalf("%+v, want to be started again", e)
	}
	if again := begin(); again != url {
		t.Errorf("served at %s, then at %s", url, again)
	}
	for publish() != nil {
		if ctx.Err() != nil {
			t.Fatal("nothing is kept after the restart")
		}
	}
	s, err := js.Stream(ctx, "guestprobe-events")
	if err != nil {
		t.Fatal(err)
	}
	if n := s.CachedInfo().State.Msgs; n < 2 {
		t.Errorf("%d messages are kept, want those of before and after", n)
	}
	cancel()
	if e := <-ended; e.err != nil || e.again {
		t.Errorf("%+v", e)
	}
	for _, want := range []string{"the server keeps nothing more until its disk has room", "the disk has room: the server starts again"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, out.String())
		}
	}
}

// TestSmallDisk: a server whose disk is too small for what it is to keep names the disk, the sizes and the flags.
func TestSmallDisk(t *testing.T) {
	o := serveFlags(t)
	o.Bounds.EventsBytes = math.MaxInt64 / 8
	so, err := options(o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = serveOnce(patience.Context(t), o, so, slog.New(slog.NewTextHandler(io.Discard, nil)), func(*server.Server) error { return nil })
	if err == nil {
		t.Fatal("it serves")
	}
	for _, want := range []string{"--store " + o.Store + ": its disk has ", " MiB free", "definitions take up to 256.0 MiB", fmt.Sprintf("--events-bytes %.1f MiB", float64(o.Bounds.EventsBytes)/(1<<20)), "--maps-bytes 8.0 MiB", "give smaller --events-bytes"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: without %q", err, want)
		}
	}
}

// TestPasswords: the server takes the passwords that its clients take, and no others.
func TestPasswords(t *testing.T) {
	for text, want := range map[string]string{
		"secret\n": "", strings.Repeat("x", 256): "", strings.Repeat("x", 257): "the password has 257 bytes, more than 256", "\n": "the file is empty",
	} {
		o := serveFlags(t)
		if err := os.WriteFile(o.Password, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := options(o)
		cerr := fleet.Address{URL: "nats://x:1", Creds: o.Password}.CheckFiles()
		if (err == nil) != (want == "") || (cerr == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(cerr.Error(), want)) {
			t.Errorf("%.10q: server %v, client %v; want %q", text, err, cerr, want)
		}
	}
	o := serveFlags(t)
	if _, err := options(o); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(o.Password); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the password's file: %v, %v", st, err)
	}
	if err := os.Chmod(o.Password, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := options(o); err == nil || !strings.Contains(err.Error(), "may write to "+o.Password) {
		t.Errorf("a password that everybody can change: %v", err)
	}
}
