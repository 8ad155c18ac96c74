package http

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestProgramNotes sets the size of a map in a request, and gets notes about the others.
func TestProgramNotes(t *testing.T) {
	h := serveFake(t, nil)
	list, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "sizes.o"), MapEntries: map[string]uint32{"open_size": 7, "large": 3}})
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(list.Notes, "\n"); !strings.Contains(notes, `map "pinned" is not pinned`) || !strings.Contains(notes, `map "open_ring" has no size`) || strings.Contains(notes, "open_size") {
		t.Errorf("notes %q", list.Notes)
	}
	ms, err := h.c.Maps(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		if want := map[string]int{"open_size": 7, "large": 3, "open_ring": 256 << 10}[m.Name]; want != 0 && m.Entries != want {
			t.Errorf("%s has %d entries, want %d", m.Name, m.Entries, want)
		}
	}
	if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "sizes.o"), MapEntries: map[string]uint32{"nope": 7}}); err == nil || !strings.Contains(err.Error(), `no map "nope"`) {
		t.Error(err)
	}
}

func objectFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../../../probe/bpf/testdata/obj/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestProgramAnswers is about the fields of programs, of records of their rings in a stream, and of maps. TestProgramLife of probe/session has
// the life of an object.
func TestProgramAnswers(t *testing.T) {
	h := serveFake(t, nil)
	list, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "record.o")})
	ps := list.Probes
	if err != nil || len(ps) != 1 {
		t.Fatal(ps, err)
	}
	p := ps[0]
	if p.Name != "bpf/record" || p.Def != "p:bpf/record vfs_read" || p.Runs != api.RunsOnHost || p.OnHost != "this guest has no memory that host and guest share" ||
		p.Program == nil || p.Program.Section != "kprobe/vfs_read" || fmt.Sprint(p.Program.Maps) != "[.bss .rodata records]" {
		t.Errorf("attached %+v, %+v", p, p.Program)
	}
	s := h.stream(h.ctx, api.StreamEvents{Names: []string{"record"}})
	next[api.Start](h, s, api.RecordStart)
	for _, n := range []uint64{5, 100, 200} {
		if !h.g.hit(t, 1, "vfs_read", p.Offset, func(r *probe.Regs) { r.RDI, r.RDX = 3, n }) {
			t.Fatal("not hit")
		}
	}
	for _, n := range []byte{100, 200} {
		hit := next[api.Hit](h, s, api.RecordHit)
		if hit.Stage != "program" || hit.Map != "records" || hit.CPU != 1 || hit.Probe != "bpf/record" || hit.ID != p.ID || len(hit.Data) != 96 ||
			hit.Data[8] != 3 || hit.Data[24] != n || !strings.HasPrefix(hit.Text, "records: ") || !strings.HasSuffix(hit.Text, "... (96 bytes)") {
			t.Errorf("hit %+v", hit)
		}
	}
	if p, err = h.c.Probe(h.ctx, "record"); err != nil || p.Program.Runs != 3 || p.Program.InGuest != 0 || p.Stats.Handled != 3 || p.Stats.Events != 2 || p.Stats.Lost != 0 {
		t.Errorf("%+v, %+v, %v", p.Stats, p.Program, err)
	}
	ms, err := h.c.Maps(h.ctx)
	if err != nil || len(ms) != 3 || ms[0].Name != ".bss" || ms[1].Name != ".rodata" || !ms[1].ReadOnly || ms[2].Kind != "ringbuf" || fmt.Sprint(ms[2].Probes) != "[bpf/record]" {
		t.Errorf("maps %+v, %v", ms, err)
	}
	d, err := h.c.Map(h.ctx, "records")
	if err != nil || d.Ring == nil || *d.Ring != (api.MapRing{Read: 2}) {
		t.Errorf("ring %+v, %v", d, err)
	}
	if d, err = h.c.Map(h.ctx, ".bss"); err != nil || len(d.Values) != 1 || d.Values[0].Values[0] != "03000000000000000200000000000000" {
		t.Errorf(".bss %+v, %v", d, err)
	}
	if _, err := h.c.Map(h.ctx, "nope"); !errors.Is(err, api.ErrMapNotFound) {
		t.Errorf("unknown map: %v", err)
	}
	// A reset begins nothing anew on the host, and a second object has maps of
	// the same names.
	if _, err := h.c.Reset(h.ctx, api.ResetGuest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "record.o")}); !errors.Is(err, api.ErrNameTaken) {
		t.Errorf("attached twice: %v", err)
	}
	if _, err := h.c.Detach(h.ctx, "record"); err != nil {
		t.Fatal(err)
	}
	if ms, err = h.c.Maps(h.ctx); err != nil || len(ms) != 0 {
		t.Errorf("maps behind the end: %+v, %v", ms, err)
	}
}

// TestMapAnswers is about the route of maps: those of an object that several probes share, until the last one has gone.
func TestMapAnswers(t *testing.T) {
	h := serveFake(t, nil)
	list, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "latency.o"), Disabled: true})
	ps := list.Probes
	if err != nil || len(ps) != 2 || ps[0].Enabled || ps[1].Kind != "r" || ps[1].OnHost != "this guest has no memory that host and guest share" {
		t.Fatal(ps, err)
	}
	for _, want := range []string{"[bpf/enter bpf/leave]", "[bpf/leave]"} {
		ms, err := h.c.Maps(h.ctx)
		if err != nil || len(ms) != 2 || ms[1].Name != "started" || fmt.Sprint(ms[1].Probes) != want || !ms[0].Hist {
			t.Errorf("maps %+v, %v, want started of %s", ms, err, want)
		}
		if want == "[bpf/leave]" {
			break
		}
		if _, err := h.c.Detach(h.ctx, "enter"); err != nil {
			t.Fatal(err)
		}
	}
	d, err := h.c.Map(h.ctx, "nanoseconds")
	if err != nil || d.Buckets == nil && len(d.Values) != 64 {
		t.Errorf("histogram %+v, %v", d, err)
	}
	if _, err := h.c.Detach(h.ctx, "leave"); err != nil {
		t.Fatal(err)
	}
	if ms, err := h.c.Maps(h.ctx); err != nil || len(ms) != 0 {
		t.Errorf("maps behind the end: %+v, %v", ms, err)
	}
}

// TestTaskStorageAnswer: a map with values of tasks is listed with its kind and size, and a guest without tasks is
// warned of.
func TestTaskStorageAnswer(t *testing.T) {
	h := serveFake(t, nil)
	list, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "storage.o"), Section: "kprobe/count", At: "user_hot", MapEntries: map[string]uint32{"of_task": 50}, Disabled: true})
	if err != nil || len(list.Probes) != 1 {
		t.Fatal(list, err)
	}
	var warnings []string
	for _, w := range list.Probes[0].Program.Warnings {
		warnings = append(warnings, w.Text+": "+w.What)
	}
	if all := strings.Join(warnings, "\n"); !strings.Contains(all, "task_storage_get is always 0 or empty in this guest: the guest is no Linux") {
		t.Errorf("warnings: %s", all)
	}
	d, err := h.c.Map(h.ctx, "of_task")
	if err != nil || d.Kind != "task_storage" || d.Entries != 50 || d.KeySize != 24 || d.ValueSize != 16 || len(d.Values) != 0 || d.Lost != 0 {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestProgramBodies is a table of bodies that attach nothing, with statuses and codes.
func TestProgramBodies(t *testing.T) {
	h := serveFake(t, nil)
	for body, want := range map[string]string{
		`{}`:                    `400 {"error":{"code":"bad_value","errno":"EINVAL","message":"object is missing: the bytes of an object file"}}`,
		`{"object":"aGVsbG8="}`: `400 {"error":{"code":"bad_object","errno":"EINVAL","message":"load object: `,
		`{"object":"%"}`:        `400 {"error":{"code":"bad_json"`,
		`{"objekt":""}`:         `400 {"error":{"code":"unknown_field"`,
		`{"object":"` + strings.Repeat("A", maxFileBody) + `"}`: `413 {"error":{"code":"body_too_large","errno":"EMSGSIZE","message":"the body is larger than 24117248 bytes","detail":"a file has at most 16 MiB"}}`,
	} {
		status, got := h.rawRequest(http.MethodPost, "/v1/programs", body)
		if got := fmt.Sprint(status, " ", got); !strings.HasPrefix(got, want) {
			t.Errorf("%.40s: %s, want %s", body, got, want)
		}
	}
	var wire *api.Error
	_, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "count.o"), Section: "kprobe/x"})
	if !errors.As(err, &wire) || wire.Code != api.CodeBadObject || wire.Errno != "ENOENT" {
		t.Errorf("unknown section: %v", err)
	}
	if ps, err := h.c.Probes(h.ctx); err != nil || len(ps) != 0 {
		t.Errorf("attached %+v, %v", ps, err)
	}
}
