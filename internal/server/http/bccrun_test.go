package http

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// toolRun is one tool at work.
type toolRun struct {
	*harness
	tool   bccTool
	stream *remote.Stream
	number uint64 // of the stream
	probes []string
	missed map[string]uint64 // by probe, before the load: the host's calls that switch tracepoints on wake threads
	events []map[string]any  // what its programs have reported, in the order of its coming
}

// runTool attaches the programs of a tool.
func (h *harness) runTool(t *testing.T, tool bccTool, file []byte, pid string) *toolRun {
	t.Helper()
	of := *h
	of.T = t
	h = &of
	set := map[string]string{}
	for name, value := range tool.set {
		set[name] = strings.ReplaceAll(value, "PID", pid)
	}
	list, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: file, Section: tool.section, At: tool.at, Set: set, SkipMissing: tool.skipMissing})
	ps := list.Probes
	if err != nil {
		h.Fatal(err)
	}
	r := &toolRun{harness: h, tool: tool, stream: h.stream(h.ctx, api.StreamEvents{})}
	r.number = next[api.Start](h, r.stream, api.RecordStart).Stream
	for _, p := range ps {
		r.probes = append(r.probes, p.Name)
		h.Logf("%s at %s runs on %s %s", p.Name, p.Symbol, p.Runs, p.OnHost)
	}
	now, err := h.c.Probes(h.ctx)
	if err != nil {
		h.Fatal(err)
	}
	r.missed = map[string]uint64{}
	for _, p := range now {
		r.missed[p.Name] = p.Stats.Missed
	}
	return r
}

// end takes the events that there are, and ends their stream.
func (r *toolRun) end() {
	r.Helper()
	if err := r.c.EndStream(r.ctx, r.number); err != nil {
		r.Fatal(err)
	}
	for {
		rec, err := r.stream.Next()
		if err != nil {
			r.Fatal(err)
		}
		switch rec.Type {
		case api.RecordHit:
			hit := decode[api.Hit](r.harness, rec)
			if hit.Stage != "program" {
				continue
			}
			r.events = append(r.events, r.event(hit))
		case api.RecordLost:
			r.Errorf("records are lost: %s", rec.Data)
		case api.RecordEnd:
			return
		}
	}
}

// detach takes the tool's probes away. None of its programs may have failed, or missed a hit.
func (r *toolRun) detach() {
	r.Helper()
	ps, err := r.c.DetachMany(r.ctx, r.probes...)
	if err != nil {
		r.Fatal(err)
	}
	for _, p := range ps {
		if p.Program.Faults != 0 || p.Program.Missed != 0 || p.Stats.Missed != r.missed[p.Name] {
			r.Errorf("%s: %+v %+v", p.Name, p.Stats, *p.Program)
		}
	}
}

// lines writes fields of the events.
func (r *toolRun) lines(fields ...string) (all []string) {
	for _, e := range r.events {
		var values []string
		for _, f := range fields {
			values = append(values, fmt.Sprint(e[f]))
		}
		all = append(all, strings.Join(values, " "))
	}
	return all
}

// filter are the events for which a field has a value.
func (r *toolRun) filter(field, value string) *toolRun {
	some := *r
	some.events = nil
	for _, e := range r.events {
		if fmt.Sprint(e[field]) == value {
			some.events = append(some.events, e)
		}
	}
	return &some
}

// dump reads a map: keys and values by their types. What is no structure has the name "".
func (r *toolRun) dump(name string) (keys, values []map[string]any) {
	r.Helper()
	d, err := r.c.Map(r.ctx, name)
	if err != nil {
		r.Fatal(err)
	}
	decode := func(b []byte) map[string]any {
		if b == nil {
			return nil // its type is not known
		}
		var v any
		if err := json.Unmarshal(b, &v); err != nil {
			r.Fatalf("map %s: %v: %q", name, err, b)
		}
		if fields, is := v.(map[string]any); is {
			return fields
		}
		return map[string]any{"": v}
	}
	for _, e := range d.Values {
		keys, values = append(keys, decode(e.KeyData)), append(values, decode(e.Data[0]))
	}
	return keys, values
}

// globalVar reads a global variable.
func (r *toolRun) globalVar(name string) any {
	r.Helper()
	_, values := r.dump(".bss")
	return values[0][name]
}

// total is the sum of an array of numbers.
func total(v any) (sum int) {
	for _, n := range v.([]any) {
		sum += int(n.(float64))
	}
	return sum
}

// event decodes a record, by the types of the object or as the tool's structure is declared.
func (r *toolRun) event(hit api.Hit) map[string]any {
	r.Helper()
	if r.tool.event != "" {
		v, err := decodeEvent(hit.Data, r.tool.event)
		if err != nil {
			r.Fatalf("%v in %x", err, hit.Data)
		}
		return v
	}
	d := json.NewDecoder(bytes.NewReader(hit.Value))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		r.Fatalf("a record of %d bytes, %q: %v", len(hit.Data), hit.Value, err)
	}
	return v
}

// decodeEvent decodes a structure of C whose fields are NAME:TYPE, with spaces between: u and i
// with the bits of a number, s with the length of a text, a length of bytes, * for what is left.
func decodeEvent(b []byte, layout string) (map[string]any, error) {
	v, at := map[string]any{}, 0
	take := func(n, align int) []byte {
		at = (at + align - 1) / align * align
		if at += n; at > len(b) {
			return make([]byte, n)
		}
		return b[at-n : at]
	}
	for _, field := range strings.Fields(layout) {
		name, kind, _ := strings.Cut(field, ":")
		n, _ := strconv.Atoi(strings.TrimLeft(kind, "uis*"))
		switch kind[0] {
		case 'u', 'i':
			word := make([]byte, 8)
			copy(word, take(n/8, n/8))
			if u := binary.LittleEndian.Uint64(word); kind[0] == 'u' {
				v[name] = u
			} else {
				v[name] = int64(u) << (64 - n) >> (64 - n)
			}
		case 's':
			text, _, _ := bytes.Cut(take(n, 1), []byte{0})
			v[name] = string(text)
		case '*':
			v[name] = take(max(0, len(b)-at), 1)
		default:
			v[name] = take(n, 1)
		}
	}
	if at > len(b) {
		return nil, fmt.Errorf("%d bytes, want %d", len(b), at)
	}
	return v, nil
}
