package cli

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/patience"
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
