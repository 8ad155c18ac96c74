package session_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// object returns an object file with programs.
func object(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../bpf/testdata/obj/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestProgramLife attaches an object, and follows a record of its ring to a subscription, its maps, its counts, and its detach.
func TestProgramLife(t *testing.T) {
	b := newBare(t)
	a, err := b.s.AttachObject(session.ObjectSpec{File: object(t, "record.o")})
	if err != nil || len(a.Probes) != 1 {
		t.Fatal(a, err)
	}
	p := b.s.Describe(a.Probes)[0]
	if p.Name != "bpf/record" || p.Spec.Def != "p:bpf/record vfs_read" || p.Site.InGuest || p.OnHost != "this guest has no memory that host and guest share" ||
		p.Program == nil || p.Program.Section != "kprobe/vfs_read" || fmt.Sprint(p.Program.Maps) != "[.bss .rodata records]" {
		t.Errorf("attached %+v, %+v", p, p.Program)
	}
	sub := b.s.Subscribe(nil, event.Queue{}, session.AllEvents)
	defer sub.Close()
	for _, n := range []uint64{5, 100, 200} {
		b.hit(1, "vfs_read", p.Offset, func(r *probe.Regs) { r.RDI, r.RDX = 3, n })
	}
	for _, n := range []byte{100, 200} {
		ev, err := sub.Next(patience.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		r, ok := session.RingRecordOf(ev)
		if !ok || r.Map != "records" || session.ProbeOf(ev).Name() != "bpf/record" || ev.CPU != 1 || len(r.Data) != 96 || r.Data[8] != 3 || r.Data[24] != n {
			t.Errorf("event %+v, %+v", ev, r)
		}
	}
	if i, err := b.s.Get("record"); err != nil || i.Program.Runs != 3 || i.Program.InGuest != 0 || i.Stats.Handled != 3 || i.Stats.Events != 2 || i.Stats.Lost != 0 {
		t.Errorf("%+v, %+v, %v", i.Stats, i.Program, err)
	}
	ms := b.s.Maps()
	if len(ms) != 3 || ms[0].Name != ".bss" || ms[1].Name != ".rodata" || ms[2].Name != "records" || fmt.Sprint(ms[2].Probes) != "[bpf/record]" {
		t.Errorf("maps %+v", ms)
	}
	if err := b.s.ReadMap("records", func(_ session.MapInfo, m *bpf.Map) error {
		if s := m.RingStats(); s.Read != 2 || s.Pending != 0 || s.Lost != 0 {
			t.Errorf("ring %+v", s)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	var got []string
	if err := b.s.ReadMap(".bss", func(_ session.MapInfo, m *bpf.Map) error {
		m.Walk(func(_ []byte, vals [][]byte) bool { got = append(got, hex.EncodeToString(vals[0])); return true })
		return nil
	}); err != nil || fmt.Sprint(got) != "[03000000000000000200000000000000]" {
		t.Errorf(".bss %v, %v", got, err)
	}
	b.checkRefused(b.s.ReadMap("nope", nil), session.CodeMapNotFound)
	// After a reset the host starts nothing again. A second object has maps with the same names.
	if err := b.s.Reset(func() error { return nil }, b.Reload); err != nil {
		t.Fatal(err)
	}
	_, err = b.s.AttachObject(session.ObjectSpec{File: object(t, "record.o")})
	b.checkRefused(err, session.CodeNameTaken)
	if _, err := b.s.Detach("record"); err != nil || len(b.s.Maps()) != 0 {
		t.Errorf("maps after the end: %+v, %v", b.s.Maps(), err)
	}
}

// TestObjectRefused: files that are not objects, and a section that a file does not
// have.
func TestObjectRefused(t *testing.T) {
	b := newBare(t)
	for name, spec := range map[string]session.ObjectSpec{
		"no object file": {File: []byte("hello")}, "no such section": {File: object(t, "count.o"), Section: "kprobe/x"},
	} {
		_, err := b.s.AttachObject(spec)
		if e := b.checkRefused(err, session.CodeBadObject); !strings.HasPrefix(e.Text, "load object") || name == "no such section" && !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(b.s.Probes()); n != 0 {
		t.Errorf("%d probes", n)
	}
}

// TestObjectNameIsNoText: a function's name in an object file becomes an event's name or is rejected. No part of it becomes a place.
func TestObjectNameIsNoText(t *testing.T) {
	b := newBare(t)
	for _, name := range []string{"a x #", "a/b c", "a#b_c", "a:b_c"} {
		file := bytes.ReplaceAll(object(t, "count.o"), []byte("\x00count\x00"), []byte("\x00"+name+"\x00"))
		_, err := b.s.AttachObject(session.ObjectSpec{File: file, At: "do_fork"})
		if e := b.checkRefused(err, session.CodeBadObject); !strings.Contains(e.Text, "not a place and a name") {
			t.Errorf("%q: %v", name, err)
		}
	}
	file := object(t, "count.o")
	for _, at := range []string{"do_fork#", "do_fork\n", "do fork", "do_fork(unsigned long)"} {
		_, err := b.s.AttachObject(session.ObjectSpec{File: file, At: at})
		if e := b.checkRefused(err, session.CodeBadObject); !strings.Contains(e.Text, "not a place and a name") {
			t.Errorf("%q: %v", at, err)
		}
	}
	if n := len(b.s.Probes()); n != 0 {
		t.Errorf("%d probes", n)
	}
}

// TestProgramsAtPattern attaches programs at all functions that a pattern matches: each
// knows its place, and functions that cannot be probed are counted.
func TestProgramsAtPattern(t *testing.T) {
	b := newBare(t)
	a, err := b.s.AttachObject(session.ObjectSpec{File: object(t, "multi.o"), Section: "kprobe.multi/*"})
	if err != nil {
		t.Fatal(err)
	}
	want, names := map[uint64]uint64{}, map[string]bool{}
	for i, p := range b.s.Describe(a.Probes) {
		if !strings.HasPrefix(p.Symbol, "vfs_") || p.Program.Steps == 0 || names[p.Name] {
			t.Errorf("probe %d is %s at %s: %+v", i, p.Name, p.Symbol, p.Program)
		}
		names[p.Name] = true
		for range i + 1 {
			b.hit(0, p.Symbol, p.Offset, func(*probe.Regs) {})
			want[uint64(p.Addr)]++
		}
	}
	if len(want) < 1 {
		t.Fatalf("%d probes", len(want))
	}
	got := map[uint64]uint64{}
	if err := b.s.ReadMap("calls", func(_ session.MapInfo, m *bpf.Map) error {
		m.Walk(func(key []byte, vals [][]byte) bool {
			got[binary.LittleEndian.Uint64(key)] = binary.LittleEndian.Uint64(vals[0])
			return true
		})
		return nil
	}); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("calls %v, want %v, %v", got, want, err)
	}
	if _, err := b.s.Detach(); err != nil {
		t.Fatal(err)
	}
	if a, err = b.s.AttachObject(session.ObjectSpec{File: object(t, "multi.o"), Section: "kretprobe.multi/*"}); err != nil {
		t.Fatal(err)
	}
	for _, p := range b.s.Describe(a.Probes) {
		if p.Kind != 'r' || !strings.HasSuffix(p.Symbol, "_fork") {
			t.Errorf("%c %s", p.Kind, p.Symbol)
		}
	}
	_, err = b.s.AttachObject(session.ObjectSpec{File: object(t, "multi.o"), Section: "kprobe.multi/*", At: "nothing_*"})
	if err == nil || !strings.Contains(err.Error(), `the guest has no function that matches "nothing_*"`) {
		t.Error(err)
	}
}
