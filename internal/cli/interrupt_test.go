package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestSecondInterrupt: a script that is asked to end and does not, because the daemon says
// nothing more, ends with the second Ctrl-C as any program does.
func TestSecondInterrupt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.LevelHeader, api.Current.String())
		switch r.Method {
		case http.MethodDelete:
			close(asked)
			<-r.Context().Done()
			return
		case http.MethodGet:
			fmt.Fprintln(w, "{}")
			return
		}
		fmt.Fprintf(w, `{"type":%q,"data":{"stream":7,"attached":1}}`+"\n", api.RecordStart)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})}
	served := make(chan error)
	go func() { served <- srv.Serve(ln) }()
	defer func() { srv.Close(); <-served }()

	ctx := patience.Of(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, "run", "-e", "BEGIN { }")
	cmd.Args[0], cmd.Env = "guestprobe", append(os.Environ(), api.SocketEnv+"="+path)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "Attached 1 probe\n" {
		t.Errorf("it says %q, %v", line, err)
	}
	for range 2 {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		<-asked // it waits for the end now
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
		t.Errorf("it ended with %v, want the signal", err)
	}
}

// TestInterruptBlocked: a client whose output is not read ends with the second Ctrl-C, too.
func TestInterruptBlocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	full := make(chan struct{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.LevelHeader, api.Current.String())
		if r.Method != http.MethodPost {
			fmt.Fprintln(w, "{}")
			return
		}
		fmt.Fprintf(w, `{"type":%q,"data":{"stream":7,"attached":1}}`+"\n", api.RecordStart)
		line, err := json.Marshal(map[string]any{"type": api.RecordOutput, "data": api.Output{Text: strings.Repeat("text ", 1000) + "\n"}})
		if err != nil {
			t.Error(err)
		}
		wrote := make(chan struct{}, 1)
		go func() { // nothing gets on for a while: the client's output is full
			for {
				select {
				case <-wrote:
				case <-time.After(200 * time.Millisecond):
					close(full)
					return
				}
			}
		}()
		for r.Context().Err() == nil {
			if _, err := w.Write(append(line, '\n')); err != nil {
				return
			}
			select {
			case wrote <- struct{}{}:
			default:
			}
		}
	})}
	served := make(chan error)
	go func() { served <- srv.Serve(ln) }()
	defer func() { srv.Close(); <-served }()

	ctx := patience.Of(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, "run", "-e", "BEGIN { }")
	cmd.Args[0], cmd.Env = "guestprobe", append(os.Environ(), api.SocketEnv+"="+path)
	out, in, err := os.Pipe() // which is not read
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	select {
	case <-full:
	case <-ctx.Done():
		t.Fatal("the client reads all")
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		if err := cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
				t.Errorf("it ended with %v, want the signal", err)
			}
			return
		case <-time.After(100 * time.Millisecond): // two at once may be one
		case <-ctx.Done():
			t.Fatal("it does not end")
		}
	}
}
