package cli

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestProfileCutOff: if the daemon ends without an end record, the error says how much it had counted, and that it is lost.
func TestProfileCutOff(t *testing.T) {
	dir := t.TempDir()
	path, saved := filepath.Join(dir, "s"), filepath.Join(dir, "p.pb.gz")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.LevelHeader, api.Current.String())
		if r.Method == http.MethodGet {
			fmt.Fprintln(w, "{}")
			return
		}
		fmt.Fprintf(w, `{"type":%q,"data":{"stream":7}}`+"\n", api.RecordStart)
		for n := range 2 {
			fmt.Fprintf(w, `{"type":%q,"data":{"delivered":%d,"lost":3}}`+"\n", api.RecordHeartbeat, 100*(n+1))
		}
	})}
	served := make(chan error)
	go func() { served <- srv.Serve(ln) }()
	defer func() { srv.Close(); <-served }()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(patience.Context(t), self, "profile", "--output", saved)
	cmd.Args[0], cmd.Env = "guestprobe", append(os.Environ(), api.SocketEnv+"="+path)
	out, err := cmd.CombinedOutput()
	want := regexp.MustCompile(`^Profiling all vCPUs\.
guestprobe: stream was cut off: 200 samples in \S+, as the daemon said last, are gone: until a profile ends its stacks are in the daemon\n$`)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !want.Match(out) {
		t.Errorf("%v: %q", err, out)
	}
	if _, err := os.Stat(saved); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has written a file: %v", err)
	}
}
