package http

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestEventLines: lines are kept while two streams are open, and found for the same event only.
func TestEventLines(t *testing.T) {
	var l eventLines
	first, second := event.Event{Seq: 7}, event.Event{Seq: 7 + keptLines}
	found := func(ev event.Event) string {
		if line := l.find(ev); line != nil {
			return string(line.text)
		}
		return "-"
	}
	is := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	l.join()
	l.keep(first, 1, []byte("one"))
	is("one stream", found(first), "-")
	l.join()
	is("from before", found(first), "-")
	text := []byte("one")
	l.keep(first, 1, text)
	text[0] = 'x'
	is("two streams", found(first), "one")
	is("another event", found(second), "-")
	is("late in another stream", found(event.Event{Seq: 7, Late: true}), "-")
	l.keep(second, 2, []byte("two"))
	is("replaced", found(first), "-")
	is("the later one", found(second), "two")
	l.keep(first, 1, bytes.Repeat([]byte("x"), longestLine+1))
	is("a long line", found(second), "two")
	l.leave()
	is("one has left", found(second), "-")
}

// TestReadersAgree: streams that are open at the same time have the same records of the same hits, with their arguments, whichever of them made the text.
func TestReadersAgree(t *testing.T) {
	h := serveMachine(t, 2)
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:t user_hot a=%di b=%si"}, api.ProbeSpec{Def: "r:u vfs_read $retval"}); err != nil {
		t.Fatal(err)
	}
	const readers, hits = 3, 2000
	all := make(chan map[string]string, readers)
	for range readers {
		s := h.stream(h.ctx, api.StreamEvents{Names: []string{"t", "u"}})
		go func() {
			defer s.Close()
			of := map[string]string{}
			for len(of) < hits {
				r, err := s.Next()
				if err != nil {
					h.Error(err)
					break
				}
				var hit api.Hit
				if r.Type == api.RecordHit && json.Unmarshal(r.Data, &hit) == nil {
					key, _ := json.Marshal([]any{hit.TimeNS, hit.CPU, hit.Probe, hit.Text})
					of[string(key)] = string(bytes.Replace(r.Data, []byte(`"late":true,`), nil, 1))
				}
			}
			all <- of
		}()
	}
	first, both := <-all, 0
	for range readers - 1 {
		for key, data := range <-all {
			if want, ok := first[key]; ok && data != want {
				t.Fatalf("a hit is %s in one stream and %s in another", want, data)
			} else if ok {
				both++
			}
		}
	}
	if both == 0 {
		t.Error("no hit was in two streams")
	}
}

// TestEveryBoot: a stream that lags behind several boots has the record of each before the hits of that boot.
func TestEveryBoot(t *testing.T) {
	h := serveFake(t, nil)
	e := &eventStream{stream: h.s.streams.newStream(httptest.NewRecorder()), host: h.s.eventHost, boot: 100}
	h.s.control.resetMu.Lock()
	for _, at := range []int64{100, 200, 300, 400, 500} {
		h.s.control.noteBoot(at)
	}
	h.s.control.resetMu.Unlock()
	for _, tc := range []struct {
		ns   int64
		want string
	}{{150, ""}, {200, "200 "}, {250, ""}, {450, "300 400 "}, {350, ""}, {600, "500 "}, {700, ""}} {
		e.buf.Reset()
		e.countHit(tc.ns, false)
		got := ""
		for line := range bytes.Lines(e.buf.Bytes()) {
			var r struct {
				Type api.RecordType
				Data api.Boot
			}
			if err := json.Unmarshal(line, &r); err != nil || r.Type != api.RecordBoot {
				t.Fatalf("%s: %v", line, err)
			}
			got += fmt.Sprint(r.Data.BootNS, " ")
		}
		if got != tc.want {
			t.Errorf("before a hit at %d: boots %q, want %q", tc.ns, got, tc.want)
		}
	}
	for at := range int64(2 * maxHistory) {
		h.s.control.noteBoot(1000 + at)
	}
	if all := h.s.control.bootsBetween(0, 1<<40); len(all) != maxHistory || all[len(all)-1] != 999+2*maxHistory {
		t.Errorf("%d boots are kept, until %d", len(all), all[len(all)-1])
	}
}
