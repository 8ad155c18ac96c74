package event

import (
	"math"
	"sync"
	"testing"
	"time"
)

// TestPut sends events from several goroutines concurrently with those of the vCPUs:
// each is delivered once, with its vCPU and bytes, or counted as lost.
func TestPut(t *testing.T) {
	h := NewHub(2, HubOptions{RingBytes: 1 << 20})
	src := h.Source(compile(t, "p vfs_read", Options{}), "tag")
	sub := h.Subscribe(nil, Queue{})
	var wg sync.WaitGroup
	const each = 100
	for g := range 4 {
		wg.Go(func() {
			for i := range each {
				// Times that no clock has shown yet, or ever will.
				at := []int64{h.Now(), math.MaxInt64, math.MinInt64, 0}[i%4]
				if !src.Put(g%2, at, []byte{byte(g), byte(i)}) {
					t.Error("lost")
				}
			}
		})
	}
	wg.Wait()
	if src.Put(2, 0, nil) || src.Put(-1, 0, nil) || src.Put(1, 0, make([]byte, maxRecord-recordHeader+1)) {
		t.Error("stored for a vCPU that there is not, or too long")
	}
	if !src.Put(1, math.MaxInt64, make([]byte, maxRecord-recordHeader)) {
		t.Error("the longest is lost")
	}
	src.Lose(1, 5)
	ctx := t.Context()
	if err := h.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	var seen [4][each]bool
	for range 4 * each {
		ev, err := sub.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(ev.Payload()) != 2 || ev.CPU != int(ev.Payload()[0])%2 || ev.Time < 0 || ev.Time > h.Now() {
			t.Fatalf("event of %d bytes on vCPU %d at %d", len(ev.Data), ev.CPU, ev.Time)
		}
		once := &seen[ev.Payload()[0]][ev.Payload()[1]]
		if *once {
			t.Fatalf("event %d comes twice", ev.Payload())
		}
		*once = true
	}
	if ev, err := sub.Next(ctx); err != nil || len(ev.Data) != maxRecord || ev.CPU != 1 {
		t.Errorf("the longest: %d bytes, %v", len(ev.Data), err)
	}
	h.Close()
	if src.Put(0, 0, nil) {
		t.Error("stored after the end")
	}
	want := []Counts{{Stored: 2 * each, Lost: 2 + 1}, {Stored: 2*each + 1, Lost: 1 + 5}}
	for i, c := range h.Counts().CPUs {
		if c != want[i] {
			t.Errorf("vCPU %d: %+v, want %+v", i, c, want[i])
		}
	}
}

// TestPutRecord wants records from elsewhere to be their source's, with a time that
// has come, whatever they say.
func TestPutRecord(t *testing.T) {
	h := NewHub(1, HubOptions{})
	a, b := testSource(t, h, "a"), testSource(t, h, "b")
	sub := h.Subscribe(nil, Queue{})
	rec := make([]byte, 40)
	le.PutUint64(rec[RecordTime:], math.MaxUint64>>1)
	le.PutUint32(rec[RecordMark:], b.Mark(AtPost))
	rec[39] = 7
	if !a.PutRecord(0, rec) || a.PutRecord(0, rec[:15]) {
		t.Error("a record is lost, or what is too short for one is not")
	}
	h.Close()
	all := read(t, sub)
	if len(all) != 1 || all[0].Source != a || all[0].Time > h.Now() || markMoment(le.Uint32(all[0].Data[RecordMark:])) != AtPost || all[0].Data[39] != 7 {
		t.Errorf("%+v", all)
	}
	if a.Counts() != (Counts{Stored: 1, Lost: 1}) || b.Counts() != (Counts{}) {
		t.Errorf("counts %+v, %+v", a.Counts(), b.Counts())
	}
}

// TestPutReturn wants a return from elsewhere to have lasted as long as that says, although
// its clock is ahead of the hub's.
func TestPutReturn(t *testing.T) {
	h := NewHub(1, HubOptions{})
	l := compile(t, "r:back vfs_read $retval", Options{})
	src := h.Source(l, nil)
	sub := h.Subscribe(nil, Queue{})
	rec := make([]byte, l.MaxBytes)
	const ahead, lasted = uint64(time.Hour), 1234
	le.PutUint64(rec[RecordTime:], uint64(h.Now())+ahead)
	le.PutUint64(rec[l.Entered:], le.Uint64(rec[RecordTime:])-lasted)
	le.PutUint32(rec[RecordMark:], src.Mark(AtReturn))
	if !src.PutRecord(0, rec) {
		t.Fatal("the record is lost")
	}
	h.Close()
	all := read(t, sub)
	if len(all) != 1 {
		t.Fatalf("%+v", all)
	}
	r, err := l.Decode(all[0].Data)
	if err != nil || r.Duration != lasted || all[0].Time > h.Now() {
		t.Errorf("%+v, %v", r, err)
	}
}
