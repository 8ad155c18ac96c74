package session

import (
	"encoding/binary"
	"testing"
)

// TestScriptRecords: waiting records are taken in order and not all at once, each
// with the record after it, which makes room for new ones.
func TestScriptRecords(t *testing.T) {
	s := Script{records: scriptRecords{ready: make(chan struct{}, 1)}}
	q := &s.records
	big := make([]byte, 1024)
	put := func(n int) (taken int) {
		for i := range n {
			binary.LittleEndian.PutUint32(big, uint32(i))
			if q.Put(0, 0, big) {
				taken++
			}
		}
		return taken
	}
	const room = maxQueued / 1024
	if n := put(room + 10); n != room || q.lost != 10 {
		t.Fatalf("%d kept and %d lost of %d", n, q.lost, room+10)
	}
	seen := uint32(0)
	for seen < room {
		<-q.ready // it says so as long as there is something
		records, next := s.take()
		if len(records) != min(MaxTaken, room-int(seen)) {
			t.Fatalf("%d at once behind %d", len(records), seen)
		}
		for _, r := range records {
			if n := binary.LittleEndian.Uint32(r.Data); n != seen {
				t.Fatalf("record %d in the place of %d", n, seen)
			}
			seen++
		}
		if (next == nil) != (seen == room) || next != nil && binary.LittleEndian.Uint32(next) != seen {
			t.Fatalf("behind %d: %v", seen, next)
		}
	}
	if records, next := s.take(); len(records) != 0 || next != nil || q.bytes != 0 || len(q.ready) != 0 {
		t.Fatalf("%d records, %d bytes, %d signals are left", len(records), q.bytes, len(q.ready))
	}
	if n := put(room); n != room {
		t.Errorf("%d of %d behind that", n, room)
	}
}
