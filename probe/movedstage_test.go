package probe_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// move copies the stack of the parked task from to that of task to, as a runtime does that grows
// stacks, and overwrites the old one.
func (s *staged) move(from, to uint64) {
	s.Helper()
	const size = 4096
	old, now := uint64(s.addr("co_stacks"))+from*size, uint64(s.addr("co_stacks"))+to*size
	b, sp := make([]byte, size), make([]byte, 8)
	read := func(at uint64, p []byte) {
		s.Helper()
		if err := s.f.Read(guest.GVA(at), p); err != nil {
			s.Fatal(err)
		}
	}
	write := func(at uint64, p []byte) {
		s.Helper()
		if err := s.f.Write(guest.GVA(at), p); err != nil {
			s.Fatal(err)
		}
	}
	read(old, b)
	read(uint64(s.addr("co_task"))+8*from, sp)
	off := binary.LittleEndian.Uint64(sp) - old
	for at := off; at < size; at += 8 {
		if w := binary.LittleEndian.Uint64(b[at:]) - old; w < size {
			binary.LittleEndian.PutUint64(b[at:], now+w)
		}
	}
	binary.LittleEndian.PutUint64(b[off+40:], to) // RBX of co_begin
	binary.LittleEndian.PutUint64(sp, now+off)
	write(now+off, b[off:])
	write(uint64(s.addr("co_task"))+8*to, sp)
	write(old+off, bytes.Repeat([]byte{0xad}, int(size-off)))
}

// TestReturnStageMoved: calls that have begun in the guest return by way of the host when
// their stack was moved, and the probe stays in the guest.
func TestReturnStageMoved(t *testing.T) {
	s := newStaged(t, true)
	for i := range uint64(4) {
		s.setStack(i, 20+i)
	}
	n := 0
	r, park := s.registerOn("co_body", 4, &n), s.registerOn("co_park", 4, new(int))
	s.register(true, r, park)
	before := s.e.Totals(-1)
	for i := range uint64(60) {
		s.begin(0)
		s.move(0, 1+i%2)
		s.call("co_resume", 100, 1+i%2)
		s.begin(3) // one that stays where it is
		s.resume(3)
	}
	i, _ := s.e.Info(&r.Kprobe)
	if x := i.Stats; !i.InGuest || x.Handled != 120 || x.Returns != 120 || x.Missed != 0 || x.Abandoned != 0 || i.InUse != 0 || n != 60 {
		t.Errorf("%d return handlers on the host, in the guest %v, %d in use, %+v", n, i.InGuest, i.InUse, x)
	}
	if now := s.e.Totals(-1); now.Copies != before.Copies || now.Foreign != before.Foreign {
		t.Errorf("%+v, before %+v", now, before)
	}
}

// TestReturnStageKept: a return address that the guest keeps remains valid, however
// many calls from other places begin in the guest in the meantime.
func TestReturnStageKept(t *testing.T) {
	s := newStaged(t, true)
	s.setStack(0, 20)
	s.setStack(1, 21)
	r := s.registerOn("set_jump", 1, new(int))
	s.register(true, r)
	s.call("co_twice", 1, 0)
	for range 3 {
		if _, err := s.f.Call(0, s.addr("co_call"), 1, uint64(s.addr("many_sites")), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := s.f.Call(0, s.addr("co_call"), 1, uint64(s.addr("fill_stack")), 0); err != nil {
			t.Fatal(err)
		}
		if err := s.e.Reclaim(); err != nil {
			t.Fatal(err)
		}
	}
	i, _ := s.e.Info(&r.Kprobe)
	if x := i.Stats; x.Hits != 301 || x.Handled < 120 || x.Returns != x.Handled || x.Handled+x.Missed != x.Hits || !i.InGuest {
		t.Errorf("in the guest %v, %+v", i.InGuest, x)
	}
	s.call("co_resume", 88, 0)
}
