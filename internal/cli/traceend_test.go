package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// writerFunc is a function as a writer.
type writerFunc func(p []byte)

// Write calls f.
func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// TestTraceOverAtItsStart ends a trace when its stream is open but has not sent its start
// yet. The trace must end for this reason, and not as cut off.
func TestTraceOverAtItsStart(t *testing.T) {
	for cause, want := range map[error]string{errTimeout: endTimeout, context.Canceled: endInterrupted} {
		ctx, over := context.WithCancelCause(t.Context())
		path := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(api.LevelHeader, api.Current.String())
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
		c := remote.New(path)
		run := &command.Run{Env: command.Env{Stderr: io.Discard}, Format: "json"}
		one := &traced{w: timeline.NewNDJSON(writerFunc(func([]byte) { over(cause) })), lines: &timeline.Lines{}, post: map[uint64]bool{}}
		tr := &tracer{Run: run, flags: &traceFlags{count: 1}, alone: true, left: 1, all: []*traced{one}}
		tr.follow(ctx, ctx, one, c, nil, func() error { return nil })
		if tr.completeEnd(ctx, one); one.err != nil || one.end.Reason != want {
			t.Errorf("%v: %+v, %v", cause, one.end, one.err)
		}
		over(nil)
		c.Close()
		srv.Close()
		<-served
	}
}

// TestTotals checks that both forms of a trace's totals show the delivered hits, and the hits that
// were not shown.
func TestTotals(t *testing.T) {
	for format, want := range map[string]string{
		"json":  `{"type":"end","data":{"reason":"count","delivered":5,"lost":4,"late":2,"unshown":2}}` + "\n",
		"table": "# 9 events: 3 shown, 2 more not shown, 4 lost; 1 late (count)\n",
	} {
		var out bytes.Buffer
		run := &command.Run{Env: command.Env{Stderr: io.Discard}, Format: format}
		w, err := traceWriter(format, &out, timeline.TextOptions{Totals: true}, false)
		if err != nil {
			t.Fatal(err)
		}
		one := &traced{w: w, post: map[uint64]bool{}}
		tr := &tracer{Run: run, flags: &traceFlags{count: 3}, alone: true, left: 3, enough: func() {}}
		for i := range 5 {
			b, err := json.Marshal(api.Hit{Late: i >= 2 && i <= 3})
			if err != nil {
				t.Fatal(err)
			}
			if err := tr.record(one, api.Record{Type: api.RecordHit, Data: b}); err != nil {
				t.Fatal(err)
			}
		}
		out.Reset()
		one.end = api.End{Reason: endCount, Delivered: 5, Lost: 4, Late: 2}
		tr.completeEnd(t.Context(), one)
		if err := tr.printTotals(one); err != nil || out.String() != want {
			t.Errorf("%s: %s%v; want %s", format, out.String(), err, want)
		}
	}
}
