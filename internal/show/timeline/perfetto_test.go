package timeline

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

func itoa(n int) string { return strconv.Itoa(n) }

// message is a message of protobuf, by the numbers of its fields.
type message map[protowire.Number][]any // uint64, or []byte

// parse reads a message, in which each field is a number or has a length.
func parse(t *testing.T, b []byte) message {
	t.Helper()
	m := message{}
	for len(b) > 0 {
		n, of, size := protowire.ConsumeTag(b)
		if size < 0 {
			t.Fatal(protowire.ParseError(size))
		}
		b = b[size:]
		switch of {
		case protowire.VarintType:
			v, size := protowire.ConsumeVarint(b)
			if size < 0 {
				t.Fatal(protowire.ParseError(size))
			}
			m[n], b = append(m[n], v), b[size:]
		case protowire.BytesType:
			v, size := protowire.ConsumeBytes(b)
			if size < 0 {
				t.Fatal(protowire.ParseError(size))
			}
			m[n], b = append(m[n], v), b[size:]
		default:
			t.Fatalf("field %d of wire type %d", n, of)
		}
	}
	return m
}

func (m message) num(n protowire.Number) uint64 {
	if len(m[n]) == 0 {
		return 0
	}
	return m[n][0].(uint64)
}

func (m message) text(n protowire.Number) string {
	if len(m[n]) == 0 {
		return ""
	}
	return string(m[n][0].([]byte))
}

func (m message) sub(t *testing.T, n protowire.Number) (out []message) {
	t.Helper()
	for _, b := range m[n] {
		out = append(out, parse(t, b.([]byte)))
	}
	return out
}

// readPerfetto reads a trace as Perfetto's trace processor does, from the numbers in its protos: packets of one
// sequence, names by their numbers, events in the order of time, slices by a stack for each track. It
// returns a line for each track and event.
func readPerfetto(t *testing.T, trace []byte) string {
	t.Helper()
	type event struct {
		ts    uint64
		track uint64
		line  string
		kind  uint64
	}
	var out strings.Builder
	var events []event
	tracks := map[uint64]string{}
	interned := map[protowire.Number]map[uint64]string{1: {}, 2: {}, 3: {}}
	valid := false
	for _, p := range parse(t, trace).sub(t, 1) {
		if p.num(10) != 1 {
			t.Fatalf("a packet of sequence %d", p.num(10))
		}
		flags := p.num(13)
		if flags&1 != 0 {
			valid = true
			if p.num(87) != 1 {
				t.Error("the first packet does not say so")
			}
		}
		if flags&2 != 0 && !valid {
			t.Fatal("a packet that refers to what is not there")
		}
		for _, s := range p.sub(t, 6) {
			for _, c := range s.sub(t, 1) {
				fmt.Fprintf(&out, "clock %d at %d\n", c.num(1), c.num(2))
			}
		}
		for _, in := range p.sub(t, 12) {
			for n := range in {
				for _, e := range in.sub(t, n) {
					if e.num(1) == 0 || interned[n][e.num(1)] != "" {
						t.Errorf("name %d of kind %d is told twice", e.num(1), n)
					}
					interned[n][e.num(1)] = e.text(2)
				}
			}
		}
		for _, d := range p.sub(t, 60) {
			name := d.text(2)
			for _, proc := range d.sub(t, 3) {
				name = fmt.Sprintf("process %d %s", proc.num(1), proc.text(6))
			}
			for _, th := range d.sub(t, 4) {
				name = fmt.Sprintf("thread %d of %d %s", th.num(2), th.num(1), th.text(5))
			}
			if len(d[8]) > 0 {
				name = "counter " + name
			}
			if parent := d.num(5); parent != 0 && tracks[parent] == "" {
				t.Errorf("track %d has a parent %d that is none", d.num(1), parent)
			}
			tracks[d.num(1)] = name
			fmt.Fprintf(&out, "track %d of %d: %s\n", d.num(1), d.num(5), name)
		}
		for _, e := range p.sub(t, 11) {
			of := func(kind protowire.Number, m message, iid, plain protowire.Number) string {
				if n := m.num(iid); n != 0 {
					s, ok := interned[kind][n]
					if !ok {
						t.Errorf("name %d of kind %d was not told", n, kind)
					}
					return s
				}
				return m.text(plain)
			}
			line := of(2, e, 10, 23)
			if c := of(1, e, 3, 22); c != "" {
				line += " [" + c + "]"
			}
			for _, a := range e.sub(t, 4) {
				line += " " + of(3, a, 1, 10) + "="
				switch {
				case len(a[3]) > 0:
					line += strconv.FormatUint(a.num(3), 10)
				case len(a[4]) > 0:
					line += strconv.FormatInt(int64(a.num(4)), 10)
				case len(a[7]) > 0:
					line += "0x" + strconv.FormatUint(a.num(7), 16)
				default:
					line += strconv.Quote(a.text(6))
				}
			}
			for _, s := range e.sub(t, 55) {
				line += " stack"
				for _, f := range s.sub(t, 1) {
					line += fmt.Sprintf(" %s(%s:%d)", f.text(1), f.text(2), f.num(3))
				}
			}
			if e.num(9) == 4 {
				line = strconv.FormatInt(int64(e.num(30)), 10)
			}
			if tracks[e.num(11)] == "" {
				t.Errorf("an event on a track %d that is none", e.num(11))
			}
			events = append(events, event{p.num(8), e.num(11), line, e.num(9)})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return int(int64(a.ts - b.ts)) })
	open := map[uint64][]int{}
	lines := make([]string, len(events))
	for i, e := range events {
		in := strings.Repeat("  ", len(open[e.track]))
		lines[i] = fmt.Sprintf("%d %s: %s%s\n", e.ts, tracks[e.track], in, e.line)
		switch e.kind {
		case 1:
			open[e.track] = append(open[e.track], i)
		case 2:
			stack := open[e.track]
			if len(stack) == 0 {
				t.Fatalf("at %d on %s a slice ends that has not begun", e.ts, tracks[e.track])
			}
			began := stack[len(stack)-1]
			lines[began] = strings.TrimSuffix(lines[began], "\n") + fmt.Sprintf(" for %d\n", e.ts-events[began].ts)
			open[e.track], lines[i] = stack[:len(stack)-1], ""
		}
	}
	for track, left := range open {
		if len(left) > 0 {
			t.Errorf("%d slices of %s have not ended", len(left), tracks[track])
		}
	}
	out.WriteString(strings.Join(lines, ""))
	return out.String()
}
