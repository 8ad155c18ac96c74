package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// fleetText returns a script of a fleet that prints into a buffer.
func fleetText(t *testing.T, json bool) (*scriptStream, *lockedBuffer, *lockedBuffer) {
	t.Helper()
	out, said := &lockedBuffer{}, &lockedBuffer{}
	r := &command.Run{Env: command.Env{Stdout: out, Stderr: said, Getenv: func(string) string { return "" }}, Format: "table"}
	if json {
		r.Format = "json"
	}
	return newScriptStream(r, &scriptFlags{}, false, out, nil), out, said
}

// lockedBuffer is a buffer for use by several goroutines.
type lockedBuffer struct {
	lockedWriter
	b bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestFleetPartialLines: text without a newline is printed while the script runs, with its daemon's name. If the line ends in time,
// it is printed as one line. Time and memory are proportional to the text.
func TestFleetPartialLines(t *testing.T) {
	fs, out, _ := fleetText(t, false)
	one := &sender{name: "vm1"}
	fs.lines.Begin(one.name)
	print := func(text string) {
		t.Helper()
		if err := fs.print(one, time.Now().UnixNano(), text); err != nil {
			t.Fatal(err)
		}
	}
	print("whole\nbeg")
	print("un\nx")
	if err := fs.lines.Advance(one.name, 1<<62); err != nil {
		t.Fatal(err)
	}
	if out.String() != "vm1: whole\nvm1: begun\n" {
		t.Errorf("printed %q", out.String())
	}
	for ctx := patience.Context(t); !strings.HasSuffix(out.String(), "vm1: x\n"); {
		if ctx.Err() != nil {
			t.Fatalf("text without a newline is not printed: %q", out.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
	print("y\n")
	if !strings.HasSuffix(out.String(), "vm1: x\nvm1: y\n") {
		t.Errorf("printed %q", out.String())
	}
	dot := strings.Repeat(".", 100)
	for range 64 << 20 / len(dot) { // copying the whole line for each would take too long
		print(dot)
		if n := cap(one.line); n > 4*maxPartial {
			t.Fatalf("%d bytes are held", n)
		}
	}
	fs, _, _ = fleetText(t, true)
	one = &sender{name: "vm1"}
	var err error
	for range 64 {
		if err = fs.print(one, 1, strings.Repeat("x", 1<<20)); err != nil {
			break
		}
	}
	if !errors.Is(err, remote.ErrProtocol) || cap(one.line) > 4*maxJSONLine {
		t.Errorf("an object without an end: %v, %d bytes", err, cap(one.line))
	}
}

// TestFleetMapParts: an endless sequence of parts of maps, or maps of intervals that were not requested, end the stream.
func TestFleetMapParts(t *testing.T) {
	fs, _, _ := fleetText(t, false)
	one := &sender{name: "vm1"}
	element := `{"name":"@n","kind":"count","elements":[` + strings.TrimSuffix(strings.Repeat(`{"words":[1]},`, 1000), ",") + `]}`
	var err error
	for i := 0; err == nil; i++ {
		if err = fs.maps(one, api.ScriptMaps{Maps: []byte("[" + element + "]"), More: true}); i > 4*script.MaxStateElements/1000 {
			t.Fatal("no bound")
		}
	}
	if !errors.Is(err, remote.ErrProtocol) {
		t.Error(err)
	}
	one = &sender{name: "vm1"}
	if err := fs.maps(one, api.ScriptMaps{Maps: []byte("[]"), Part: true}); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("a part that nobody has asked for: %v", err)
	}
}

// TestFleetForgedLines: each line of a daemon's message is prefixed with its name.
func TestFleetForgedLines(t *testing.T) {
	fs, _, said := fleetText(t, false)
	forged := "text\nvm2: its text\x1b[2J"
	err := failures(fs.Run, []failure{{"vm1", errors.New(forged)}, {"vm3", &api.Error{Code: "x\nvm2: y", Errno: "E\nvm2: z", Message: forged}}})
	for _, line := range strings.Split(strings.TrimSpace(said.String()+err.Error()), "\n") {
		if !strings.HasPrefix(line, "vm1: ") && !strings.HasPrefix(line, "vm3: ") || strings.Contains(line, "\x1b[2J") && !strings.Contains(err.Error(), line) {
			t.Errorf("a forged line: %q", line)
		}
	}
	one := &sender{name: "vm1"}
	if err := fs.record(one, api.Record{Type: api.RecordWarning, Data: []byte(`{"text":"a\nvm2: b"}`)}); err != nil {
		t.Error(err)
	}
	if !strings.HasSuffix(said.String(), "vm1: a\nvm1: vm2: b\n") {
		t.Errorf("said %q", said.String())
	}
	fs.all = []*sender{{name: "vm1", begun: true, end: api.End{Lost: 1<<64 - 1, Reason: "x\nvm2: y"}}}
	if err := fs.finish(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(said.String(), "vm1: lost 18446744073709551615 events\n") || strings.Contains(said.String(), "\nvm2") {
		t.Errorf("said %q", said.String())
	}
}

// TestMemberBounds: one answer of a member is bounded in bytes and time, and all answers together in bytes.
func TestMemberBounds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	hs := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.LevelHeader, api.Current.String())
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/v1/guest": // an endless answer
			for _, err := io.WriteString(w, "{"); err == nil; _, err = io.WriteString(w, strings.Repeat(" ", 1<<16)) {
			}
		case "/v1/daemon": // no answer
			<-stop
		case "/version":
			fmt.Fprintf(w, `{"version":"%s"}`, strings.Repeat("x", 900))
		default:
			for _, err := io.WriteString(w, `{"type":"`); err == nil; _, err = io.WriteString(w, strings.Repeat("x", 1<<16)) {
			}
		}
	})}
	go func() { _ = hs.Serve(l) }()
	defer hs.Close()
	defer close(stop)
	room := remote.NewRoom(1 << 20)
	c := remote.NewWithDial("x", func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}, func() {}).SetBounds(remote.Bounds{Answer: 256 << 10, Line: 128 << 10, Time: 500 * time.Millisecond, All: room})
	defer c.Close()
	ctx := patience.Context(t)
	if _, err := c.Guest(ctx); !errors.Is(err, remote.ErrProtocol) || !strings.Contains(err.Error(), "an answer of more than 262144 bytes") {
		t.Errorf("an answer without end: %v", err)
	}
	if _, err := c.Daemon(ctx); err == nil || !strings.Contains(err.Error(), "the daemon has not answered in time: not within 500ms") {
		t.Errorf("no answer: %v", err)
	}
	s, err := c.Events(ctx, api.StreamEvents{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Next(); err == nil || !strings.Contains(err.Error(), "a record of more than 131072 bytes") {
		t.Errorf("a record without end: %v", err)
	}
	for i := range 1 << 20 / 900 {
		if _, err = c.Version(ctx); err != nil {
			if i < 500 {
				t.Errorf("after %d answers: %v", i, err)
			}
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "larger than there is room for") {
		t.Errorf("all answers together: %v", err)
	}
}
