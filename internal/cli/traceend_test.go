package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
	"github.com/guestprobe/guestprobe/internal/command"
)

// writerFunc is a writer.
type writerFunc func(p []byte)

// Write calls f.
func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// TestTraceOverAtItsStart ends a trace when its stream is open and its start has not
// come: it has ended for that reason, and nobody has cut it off.
func TestTraceOverAtItsStart(t *testing.T) {
	for cause, want := range map[error]string{errTimeout: endTimeout, context.Canceled: endInterrupted} {
		ctx, over := context.WithCancelCause(t.Context())
		path := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			send := func(of api.RecordType) {
				fmt.Fprintf(w, `{"type":%q,"data":{}}`+"\n", of)
				_ = http.NewResponseController(w).Flush()
			}
			send(api.RecordHeartbeat)
			<-ctx.Done()
			send(api.RecordStart)
			<-r.Context().Done()
		})}
		served := make(chan error)
		go func() { served <- srv.Serve(ln) }()
		c := client.New(path)
		run := &command.Run{Env: command.Env{Stderr: io.Discard}, Format: "json"}
		tr := &tracer{Run: run, out: writerFunc(func([]byte) { over(cause) }), lines: &liner{}, count: 1, left: 1, post: map[uint64]bool{}}
		if end, err := tr.follow(ctx, c, api.StreamEvents{}); err != nil || end.Reason != want {
			t.Errorf("%v: %+v, %v", cause, end, err)
		}
		over(nil)
		c.Close()
		srv.Close()
		<-served
	}
}
