package http

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// stream opens an event stream.
func (h *harness) stream(ctx context.Context, r api.StreamEvents) *remote.Stream {
	h.Helper()
	s, err := h.c.Events(ctx, r)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { s.Close() })
	return s
}

// awaitGone waits until n probes are left.
func (h *harness) awaitGone(n int) {
	h.Helper()
	for {
		changed := h.s.probes.Changed()
		if len(h.s.probes.Probes()) == n {
			return
		}
		select {
		case <-changed:
		case <-h.ctx.Done():
			h.Fatalf("%d probes are left, want %d", len(h.s.probes.Probes()), n)
		}
	}
}

func TestHitRecords(t *testing.T) {
	begin := time.Now().Round(0) // as JSON has it, without the monotonic clock
	h := serveFake(t, nil)
	s := h.stream(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:sched schedule a=%di b=%si:s32 c=$comm:string", Post: true}}})
	start := next[api.Start](h, s, api.RecordStart)
	if len(start.Probes) != 1 || start.Probes[0].Name != "kprobes/sched" || start.Probes[0].Stay || start.Epoch.Before(begin) || start.Epoch.After(time.Now()) {
		t.Fatalf("start %+v", start)
	}
	p := start.Probes[0]
	minus := int32(-5)
	if !h.g.hit(t, 1, "schedule", p.Offset, func(r *probe.Regs) { r.RDI, r.RSI = 1<<60, uint64(uint32(minus)) }) {
		t.Fatal("not hit")
	}
	hit := next[api.Hit](h, s, api.RecordHit)
	if hit.CPU != 1 || hit.Probe != "kprobes/sched" || hit.ID != p.ID || hit.Stage != "pre" || hit.Addr != p.Addr || hit.CPL != 0 ||
		!strings.HasPrefix(hit.Symbol, "schedule") || hit.TimeNS <= 0 || hit.Regs["rdi"] != 1<<60 {
		t.Errorf("hit %+v", hit)
	}
	wantArgs := []api.Arg{
		{Name: "a", Type: "x64", Value: "1152921504606846976", Text: "0x1000000000000000"},
		{Name: "b", Type: "s32", Value: -5.0, Text: "-5"},
		{Name: "c", Type: "string", Value: nil, Text: "(fault)"}, // no task on the fake's stack
	}
	if d := cmp.Diff(wantArgs, hit.Args); d != "" {
		t.Errorf("args (-want +got):\n%s", d)
	}
	if want := fmt.Sprintf("(schedule+0x%x/0x%x) a=0x1000000000000000 b=-5 c=(fault)", p.Offset, p.Size); hit.Text != want {
		t.Errorf("text %q, want %q", hit.Text, want)
	}
	post := next[api.Hit](h, s, api.RecordHit)
	// The first instruction is push: the stack pointer is 8 lower.
	if post.Stage != "post" || post.Regs["rsp"] != hit.Regs["rsp"]-8 || post.Regs["rip"] != p.Addr+1 || post.TimeNS < hit.TimeNS || post.Args != nil {
		t.Errorf("post %+v", post)
	}
}

// TestTaskOfTheBuiltinGuest puts a stack of the guest under a hit.
func TestTaskOfTheBuiltinGuest(t *testing.T) {
	h := serveFake(t, nil)
	s := h.stream(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:a schedule"}}})
	next[api.Start](h, s, api.RecordStart)
	info := make([]byte, builtin.StackInfoComm+guest.ProfileCommSize)
	copy(info, "GPSTACK1")
	info[20] = 77
	copy(info[32:], "worker")
	if err := h.g.WriteMemory(0, fakeStack+24<<10, info); err != nil {
		t.Fatal(err)
	}
	h.g.hit(t, 0, "schedule", 0, func(r *probe.Regs) { r.RSP = uint64(fakeStack) + 24<<10 + 100 })
	hit := next[api.Hit](h, s, api.RecordHit)
	if d := cmp.Diff(&api.Task{PID: 77, Comm: "worker"}, hit.Task); d != "" {
		t.Errorf("task (-want +got):\n%s", d)
	}
}

func TestStreamOfNamedProbes(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:a schedule", "p:b do_wait")
	s := h.stream(h.ctx, api.StreamEvents{Names: []string{"b"}})
	if start := next[api.Start](h, s, api.RecordStart); len(start.Probes) != 1 || start.Probes[0].Name != "kprobes/b" {
		t.Errorf("start %+v", start)
	}
	all := h.stream(h.ctx, api.StreamEvents{})
	if start := next[api.Start](h, all, api.RecordStart); len(start.Probes) != 2 {
		t.Errorf("start %+v", start)
	}
	h.g.hit(t, 0, "schedule", 0, nil)
	h.g.hit(t, 0, "do_wait", 0, nil)
	h.attach("p:c do_exit")
	h.g.hit(t, 0, "do_exit", 0, nil)
	if hit := next[api.Hit](h, s, api.RecordHit); hit.Probe != "kprobes/b" {
		t.Errorf("a stream of b has %s", hit.Probe)
	}
	for _, want := range []string{"a", "b", "c"} {
		if hit := next[api.Hit](h, all, api.RecordHit); hit.Probe != "kprobes/"+want {
			t.Errorf("hit of %s, want %s", hit.Probe, want)
		}
	}
	if _, err := h.c.Detach(h.ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(api.End{Reason: api.EndDetached, Delivered: 1}, next[api.End](h, s, api.RecordEnd)); d != "" {
		t.Errorf("end (-want +got):\n%s", d)
	}
	if _, err := s.Next(); err != io.EOF {
		t.Errorf("behind the end: %v", err)
	}
}

// TestSessionProbesComeOut lets a client go away.
func TestSessionProbesComeOut(t *testing.T) {
	h := serveFake(t, nil)
	ctx, cancel := context.WithCancel(h.ctx)
	s := h.stream(ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:out schedule"}, {Def: "p:in do_wait", Stay: true}}})
	next[api.Start](h, s, api.RecordStart)
	h.attach("p:other do_exit")
	h.checkIdentical(false)
	cancel()
	h.awaitGone(2)
	var names []string
	for _, p := range h.s.probes.Probes() {
		names = append(names, p.Name())
	}
	if d := cmp.Diff([]string{"kprobes/in", "kprobes/other"}, names); d != "" {
		t.Errorf("left (-want +got):\n%s", d)
	}
}

// TestRefusedSession attaches nothing, and leaves no stream behind.
func TestRefusedSession(t *testing.T) {
	h := serveFake(t, nil)
	_, err := h.c.Events(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:a schedule"}, {Def: "p:b schedule+2"}}})
	var e *api.Error
	if !errors.As(err, &e) || *e.Index != 1 {
		t.Errorf("error %v", err)
	}
	h.awaitGone(0)
	h.checkIdentical(true)
	if n := h.listeners(); n != 0 {
		t.Errorf("%d listeners are left", n)
	}
}

// TestSlowReader does not read, and wants the guest not to notice, and every
// event either delivered or counted as lost.
func TestSlowReader(t *testing.T) {
	const hits = 60_000
	h := serveFake(t, nil)
	s := h.stream(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:a schedule", Regs: true}, {Def: "p:b do_wait", Regs: true}}})
	var wg sync.WaitGroup
	for cpu, symbol := range []string{"schedule", "do_wait"} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range hits {
				if !h.g.hit(t, cpu, symbol, 0, nil) {
					t.Error("not hit")
					return
				}
			}
		}()
	}
	wg.Wait() // ends although nobody reads
	next[api.Start](h, s, api.RecordStart)
	if _, err := h.c.DetachAll(h.ctx); err != nil {
		t.Fatal(err)
	}
	var got, lost uint64
	for {
		r, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		switch r.Type {
		case api.RecordHit:
			got++
			continue
		case api.RecordLost:
			var l api.Lost
			if err := json.Unmarshal(r.Data, &l); err != nil {
				t.Fatal(err)
			}
			if lost += l.Lost; l.Lost == 0 || l.Total != lost {
				t.Errorf("lost record %+v behind %d", l, lost-l.Lost)
			}
			continue
		case api.RecordHeartbeat:
			continue
		}
		var e api.End
		if err := json.Unmarshal(r.Data, &e); err != nil {
			t.Fatal(err)
		}
		if e.Reason != api.EndDetached || e.Delivered != got || e.Lost != lost {
			t.Errorf("end %+v behind %d hits and %d lost", e, got, lost)
		}
		break
	}
	if lost == 0 || got+lost != 2*hits {
		t.Errorf("%d delivered + %d lost, want %d and some lost", got, lost, 2*hits)
	}
}

func TestStreamsEndWithTheGuest(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*fakeGuest)
		want api.End
	}{
		{"exit", func(g *fakeGuest) {
			g.become(machine.PhaseExited, func(s *machine.State) { s.ExitCode = 3 })
		}, api.End{Reason: api.EndGuestExit, Code: ptr(int64(3)), Delivered: 1}},
		{"crash", func(g *fakeGuest) {
			g.become(machine.PhaseCrashed, func(s *machine.State) {
				s.Crash = &machine.CrashReport{Kind: machine.CrashTripleFault, Text: "triple fault"}
			})
		}, api.End{Reason: api.EndGuestCrash, Delivered: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := serveFake(t, nil)
			h.attach("p:a schedule")
			events := h.stream(h.ctx, api.StreamEvents{})
			next[api.Start](h, events, api.RecordStart)
			console, err := h.c.Console(h.ctx, true)
			if err != nil {
				t.Fatal(err)
			}
			defer console.Close()
			h.g.print("last words")
			h.g.hit(t, 0, "schedule", 0, nil)
			tc.end(h.g)
			if hit := next[api.Hit](h, events, api.RecordHit); hit.Probe != "kprobes/a" {
				t.Errorf("hit %+v", hit)
			}
			if d := cmp.Diff(tc.want, next[api.End](h, events, api.RecordEnd)); d != "" {
				t.Errorf("events end (-want +got):\n%s", d)
			}
			if l := next[api.Console](h, console, api.RecordConsole); l.Text != "last words" {
				t.Errorf("console %+v", l)
			}
			if d := cmp.Diff(tc.want, next[api.End](h, console, api.RecordEnd)); d != "" {
				t.Errorf("console end (-want +got):\n%s", d)
			}
			if g, err := h.c.Guest(h.ctx); err != nil || g.State != string(h.g.State().Phase) {
				t.Errorf("guest %+v, %v", g, err)
			}
			if _, err := h.c.Resume(h.ctx); !errors.Is(err, api.ErrGuestState) {
				t.Errorf("resume: %v", err)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

func TestHeartbeat(t *testing.T) {
	h := serveFake(t, func(o *options) { o.heartbeat = time.Millisecond })
	events := h.stream(h.ctx, api.StreamEvents{})
	next[api.Start](h, events, api.RecordStart)
	if b := next[api.Heartbeat](h, events, api.RecordHeartbeat); b != (api.Heartbeat{}) {
		t.Errorf("heartbeat %+v", b)
	}
}

func TestConsole(t *testing.T) {
	h := serveFake(t, nil)
	h.g.print("one")
	h.g.print("bad \xff byte")
	s, err := h.c.Console(h.ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if d := cmp.Diff(api.Console{Seq: 0, Text: "one"}, next[api.Console](h, s, api.RecordConsole)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(api.Console{Seq: 1, Bytes: []byte("bad \xff byte")}, next[api.Console](h, s, api.RecordConsole)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(api.End{Reason: api.EndHistory, Delivered: 2}, next[api.End](h, s, api.RecordEnd)); d != "" {
		t.Errorf("end (-want +got):\n%s", d)
	}
}

// What the guest writes comes as it is, behind its lines; what is typed arrives, however long that takes.
func TestConsoleBytes(t *testing.T) {
	h := serveFake(t, nil)
	h.g.print("one")
	s, err := h.c.ConsoleBytes(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if d := cmp.Diff(api.Console{Seq: 0, Text: "one"}, next[api.Console](h, s, api.RecordConsole)); d != "" {
		t.Error(d)
	}
	h.g.write("login: ")
	if o := next[api.Output](h, s, api.RecordOutput); o.Text != "login: " || o.Bytes != nil {
		t.Errorf("output %+v", o)
	}
	h.g.write("\xff\r\n")
	if o := next[api.Output](h, s, api.RecordOutput); o.Text != "" || string(o.Bytes) != "\xff\r\n" {
		t.Errorf("output %+v", o)
	}
	h.g.mu.Lock()
	h.g.room = 3
	h.g.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- h.c.Type(h.ctx, []byte("root\r")) }()
	typed := func() string {
		h.g.mu.Lock()
		defer h.g.mu.Unlock()
		return string(h.g.typed)
	}
	for typed() != "roo" && h.ctx.Err() == nil {
		runtime.Gosched()
	}
	h.g.mu.Lock()
	h.g.room = 100
	h.g.mu.Unlock()
	if err := <-done; err != nil || typed() != "root\r" {
		t.Errorf("typed %q, %v", typed(), err)
	}
	h.g.become(machine.PhaseExited, func(s *machine.State) { s.ExitCode = 3 })
	if d := cmp.Diff(api.End{Reason: api.EndGuestExit, Code: ptr(int64(3)), Delivered: 3}, next[api.End](h, s, api.RecordEnd)); d != "" {
		t.Errorf("end (-want +got):\n%s", d)
	}
}

// TestShutdown stops the daemon under two streams, one of which does not read,
// and wants everything put back.
func TestShutdown(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:a schedule")
	events := h.stream(h.ctx, api.StreamEvents{})
	next[api.Start](h, events, api.RecordStart)
	// A client that sends its request and never reads.
	mute, err := net.Dial("unix", h.path)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	fmt.Fprintf(mute, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
	status, err := bufio.NewReader(mute).ReadString('\n')
	if err != nil || status != "HTTP/1.1 200 OK\r\n" {
		t.Fatalf("%q, %v", status, err)
	}
	for range 50_000 {
		h.g.hit(t, 0, "schedule", 0, nil)
	}
	done := make(chan api.End, 1)
	go func() {
		for {
			r, err := events.Next()
			if err != nil {
				t.Errorf("stream: %v", err)
				close(done)
				return
			}
			var e api.End
			if r.Type == api.RecordEnd && json.Unmarshal(r.Data, &e) == nil {
				done <- e
				return
			}
		}
	}()
	h.stop()
	end := <-done
	if end.Reason != api.EndShutdown || end.Delivered+end.Lost != 50_000 {
		t.Errorf("end %+v", end)
	}
	text, err := compareText(h.g)
	if err != nil || !text.Identical {
		t.Errorf("text %+v, %v", text, err)
	}
	if _, err := h.c.Guest(h.ctx); !errors.Is(err, remote.ErrUnreachable) {
		t.Errorf("after the end: %v", err)
	}
}

// TestShutdownLateReader: a reader that has not read everything when the time
// for the streams' end is over gets the end record all the same, and what it
// did not get is counted as lost.
func TestShutdownLateReader(t *testing.T) {
	const hits = 20_000
	h := serveFake(t, func(o *options) { o.endTime, o.writeTime = 0, time.Hour })
	h.attach("p:a schedule")
	s := h.stream(h.ctx, api.StreamEvents{})
	next[api.Start](h, s, api.RecordStart)
	for range hits {
		h.g.hit(t, 0, "schedule", 0, nil)
	}
	h.cancel()
	<-h.s.stop
	var delivered, lost uint64
	for {
		r, err := s.Next()
		if err != nil {
			t.Fatalf("after %d hits and %d lost: %v", delivered, lost, err)
		}
		var v struct{ Lost, Delivered uint64 }
		if err := json.Unmarshal(r.Data, &v); err != nil {
			t.Fatal(err)
		}
		switch r.Type {
		case api.RecordHit:
			delivered++
		case api.RecordLost:
			lost += v.Lost
		case api.RecordEnd:
			if v.Delivered != delivered || v.Lost != lost || delivered+lost != hits || lost == 0 {
				t.Errorf("end %s; got %d and %d lost of %d", r.Data, delivered, lost, hits)
			}
			h.stop()
			return
		}
	}
}

// deadlines is a connection that only takes write deadlines.
type deadlines struct {
	httptest.ResponseRecorder
	last time.Time
}

// SetWriteDeadline notes the deadline.
func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.last = t
	return nil
}

// TestStreamDeadlines: each write of a stream that ends has its own time, but
// none begins to have time behind the stream's end.
func TestStreamDeadlines(t *testing.T) {
	for _, tc := range []struct {
		name     string
		left     time.Duration // until the stream's end
		min, max time.Duration // of the write's deadline, from before it and from behind it
	}{
		{"time left", time.Hour, writeTime, writeTime},
		{"no time left", -time.Hour, writeTime - time.Hour, writeTime - time.Hour},
	} {
		d := &deadlines{ResponseRecorder: *httptest.NewRecorder()}
		st := &stream{w: d, rc: http.NewResponseController(d), writeTime: writeTime, stallTime: 2 * time.Hour}
		st.enc = json.NewEncoder(&st.buf)
		st.putHeartbeat()
		if err := st.flush(); err != nil || time.Until(d.last) < time.Hour || st.late() {
			t.Errorf("%s: before the end: deadline %v, late %v, error %v", tc.name, d.last, st.late(), err)
		}
		begin := time.Now()
		st.interrupt(tc.left)
		for range 2 {
			d.last = time.Time{}
			st.putHeartbeat()
			if err := st.flush(); err != nil {
				t.Fatal(err)
			}
			if d.last.Before(begin.Add(tc.min)) || d.last.After(time.Now().Add(tc.max)) {
				t.Errorf("%s: deadline %v behind the interrupt", tc.name, d.last.Sub(begin))
			}
		}
		if st.late() != (tc.left < 0) {
			t.Errorf("%s: late is %v", tc.name, st.late())
		}
	}
}
