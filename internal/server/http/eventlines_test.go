package http

import (
	"bytes"
	"encoding/json"
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
