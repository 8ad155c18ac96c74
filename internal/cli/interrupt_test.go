package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestSecondInterrupt: a script that does not end when asked, because the daemon sends nothing
// more, is killed by the second Ctrl-C like any program.
func TestSecondInterrupt(t *testing.T) {
	if state := interruptTwice(t); state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
		t.Errorf("it ended with %v, want the signal", state)
	}
}

// interruptTwice runs a script on a daemon that does not send the end, in a client started by a command, and returns how the client exits after two Ctrl-C.
func interruptTwice(t *testing.T, by ...string) *os.ProcessState {
	t.Helper()
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

	ctx := patience.Context(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "guestprobe")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	args := append(by, program, "run", "-e", "BEGIN { }")
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), api.SocketEnv+"="+path)
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
		<-asked // the client now waits for the end
	}
	_ = cmd.Wait() // its status is not 0
	return cmd.ProcessState
}

// TestInterruptIgnored: a client started with SIGINT ignored, as in a background job of a script, also ends with the second signal.
func TestInterruptIgnored(t *testing.T) {
	if state := interruptTwice(t, "sh", "-c", `trap "" INT; exec "$@"`, "sh"); state.ExitCode() != 128+int(syscall.SIGINT) {
		t.Errorf("it ended with %v, want exit status 130", state)
	}
}

// TestInterruptBlocked: a client whose output is not read also ends with the second Ctrl-C.
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
		go func() { // until there is no progress: the client's output is full
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

	ctx := patience.Context(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, "run", "-e", "BEGIN { }")
	cmd.Args[0], cmd.Env = "guestprobe", append(os.Environ(), api.SocketEnv+"="+path)
	out, in, err := os.Pipe() // never read
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
		case <-time.After(100 * time.Millisecond): // two signals at once can be merged
		case <-ctx.Done():
			t.Fatal("it does not end")
		}
	}
}

// TestConsoleInterrupt: Ctrl-C is the normal end of following a console.
func TestConsoleInterrupt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.LevelHeader, api.Current.String())
		if r.URL.Path == "/version" {
			fmt.Fprintln(w, "{}")
			return
		}
		fmt.Fprintf(w, `{"type":%q,"data":{"text":"hello\n"}}`+"\n", api.RecordConsole)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})}
	served := make(chan error)
	go func() { served <- srv.Serve(ln) }()
	defer func() { srv.Close(); <-served }()
	for _, line := range []string{"guest console -f", "logs -f", "console -i"} {
		ctx, cancel := context.WithCancelCause(patience.Context(t))
		in, typed := io.Pipe()
		out, errs := &lockedBuffer{}, &lockedBuffer{}
		go func() {
			for ctx.Err() == nil && !strings.Contains(out.String(), "hello") {
				time.Sleep(time.Millisecond)
			}
			cancel(errors.New("interrupt signal received"))
		}()
		status := Program().Run(ctx, command.Env{Args: strings.Fields(line), Stdin: in, Stdout: out, Stderr: errs, Getenv: func(k string) string {
			return map[string]string{api.SocketEnv: path, answerTimeEnv: "5m"}[k]
		}})
		typed.Close()
		if status != 0 || !strings.Contains(out.String(), "hello") || errs.String() != "" {
			t.Errorf("%s: status %d: %q, %q", line, status, out, errs)
		}
	}
}
