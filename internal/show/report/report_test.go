package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/internal/show/timeline"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

var update = flag.Bool("update", false, "write what is expected anew")

// summarize sums up a saved trace as far as it can be read.
func summarize(trace []byte, values int) (*Report, error) {
	in, b := timeline.NewReader(bytes.NewReader(trace)), New()
	for {
		r, err := in.Next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, timeline.ErrCut):
			return b.Report(values, in), nil
		case err != nil:
			return nil, err
		}
		b.Add(r)
	}
}

// TestReport sums up the trace that all forms are made of.
func TestReport(t *testing.T) {
	trace, err := os.ReadFile("../../../internal/show/timeline/testdata/trace.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	r, err := summarize(trace, 3)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("testdata/report.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/report.json")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("testdata/report.json (-file +now):\n%s", d)
	}
	// Wherever it is cut its sums close.
	first := bytes.IndexByte(trace, '\n') + 1
	for n := first; n < len(trace); n += 53 {
		r, err := summarize(trace[:n], 3)
		whole := trace[n-1] == '\n' || trace[n] == '\n'
		if err != nil || r.Missing != 0 || r.Delivered != r.Events || r.Ended != "" || r.Half == whole {
			t.Fatalf("of %d bytes: %+v, %v", n, r, err)
		}
	}
	// A line that was taken out is missing.
	lines := bytes.SplitAfter(trace, []byte("\n"))
	if r, err := summarize(bytes.Join(slices.Delete(lines, 2, 3), nil), 3); err != nil || r.Missing != 1 {
		t.Errorf("without a line: %+v, %v", r, err)
	}
}

// TestBadFiles: what is no trace is refused with its line and the reason.
func TestBadFiles(t *testing.T) {
	start := `{"type":"start","data":{"timeNs":1,"bootNs":0,"probes":[]}}` + "\n"
	hit := `{"type":"hit","data":{"timeNs":2,"cpu":0,"probe":"a/b","stage":"pre","text":""}}` + "\n"
	end := `{"type":"end","data":{"reason":"count","delivered":1,"lost":0}}` + "\n"
	for trace, want := range map[string]string{
		"":                                       "not a saved trace: the file is empty",
		"x":                                      "line 1: not a saved trace: it is no whole line of JSON",
		"x\n":                                    "line 1: not a record as 'guestprobe trace --format json' writes them: invalid character 'x' looking for beginning of value",
		"\n":                                     "line 1: not a record as 'guestprobe trace --format json' writes them: unexpected end of JSON input",
		hit:                                      `line 1: a record of type "hit": the first one is a start, and no other`,
		start + start:                            `line 2: a record of type "start": the first one is a start, and no other`,
		start + "{}\n":                           "line 2: not a record as 'guestprobe trace --format json' writes them: it has no type",
		start + hit + `{"type":"hit"}` + "\n":    `line 3: a record of type "hit" without data`,
		start + hit + end + hit:                  "line 4: after the end of the trace: a file has one trace",
		start + `{"type":"hit","data":7}` + "\n": `line 2: a record of type "hit": it must be an object, not number`,
		start + `{"type":"end","data":{"late":-1}}` + "\n":                  `line 2: a record of type "end": field "late" must be a whole number from 0 to 18446744073709551615, not number -1`,
		start + `{"type":"hit","data":{"cpl":256}}` + "\n":                  `line 2: a record of type "hit": field "cpl" must be a whole number from 0 to 255, not number 256`,
		start + `{"type":"hit","data":{"cpu":1.5}}` + "\n":                  `line 2: a record of type "hit": field "cpu" must be a whole number from -9223372036854775808 to 9223372036854775807, not number 1.5`,
		start + strings.Replace(hit, `"cpu":0`, `"addr":"x"`, 1):            `line 2: a record of type "hit": "x" is no number of 64 bits, such as 0x1f or 31`,
		start + strings.Replace(hit, `"cpu":0`, `"addr":7`, 1):              `line 2: a record of type "hit": field "addr" must be a string, not number`,
		start + strings.Replace(hit, `"cpu":0`, `"cpu":-1`, 1):              "line 2: a hit on vCPU -1",
		start + strings.Replace(hit, `"timeNs":2`, `"timeNs":-2`, 1):        "line 2: a hit at -2 ns",
		start + strings.Replace(hit, `"probe":"a/b",`, ``, 1):               "line 2: a hit of no probe or of no stage",
		start + strings.Replace(hit, `"text"`, `"durationNs":-1,"text"`, 1): "line 2: a return after -1 ns",
		start + strings.Replace(hit, "a/b", strings.Repeat("x", 2000), 1):   "line 2: a hit with a name that is too long",
	} {
		if _, err := summarize([]byte(trace), 1); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", trace, err, want)
		}
	}
	if r, err := summarize([]byte(start+hit+end), 1); err != nil || r.Events != 1 || r.Missing != 0 || r.Ended != "count" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestLatency compares quantiles with those of all values.
func TestLatency(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 100, 10_000} {
		var h histogram
		all := make([]uint64, n)
		for i := range all {
			all[i] = uint64(math.Exp(rng.Float64() * 43))
			h.add(all[i])
		}
		slices.Sort(all)
		l := h.latency(fromReturns)
		for _, q := range []struct {
			percent int
			got     uint64
		}{{50, l.P50NS}, {90, l.P90NS}, {99, l.P99NS}} {
			exact := all[(n*q.percent+99)/100-1]
			if q.got < exact || float64(q.got) > float64(exact)*1.008 {
				t.Errorf("p%d of %d values is %d, want %d", q.percent, n, q.got, exact)
			}
		}
		if l.MinNS != all[0] || l.MaxNS != all[n-1] || l.Count != uint64(n) {
			t.Errorf("%+v of %d to %d", l, all[0], all[n-1])
		}
	}
	var h histogram
	for _, v := range []uint64{math.MaxUint64, math.MaxUint64, 0} {
		h.add(v)
	}
	if l := h.latency(fromPairs); l.MeanNS != math.MaxUint64/3*2 || l.P99NS != math.MaxUint64 || l.P50NS != math.MaxUint64 {
		t.Errorf("%+v", l)
	}
	for b := range buckets {
		if v := largestValue(b); bucket(v) != b || v != math.MaxUint64 && bucket(v+1) != b+1 {
			t.Fatalf("the largest of bucket %d is %d", b, v)
		}
	}
}

// TestTop: frequent values are found among any number of others, and counts are never too low.
func TestTop(t *testing.T) {
	budget := budget{allValues}
	c := newTop(&budget)
	for i := range 100_000 {
		c.add(fmt.Sprint("rare", i))
		if i%10 == 0 {
			c.add("often")
		}
	}
	got, others := c.mostFrequent(1)
	if len(got) != 1 || got[0].Value != "often" || got[0].Count < 10_000 || got[0].Count-got[0].Over > 10_000 || !c.over || others+got[0].Count != 110_000 {
		t.Errorf("%+v and %d others", got, others)
	}
	few := newTop(&budget)
	for i := range 10 {
		for range i {
			few.add(strings.Repeat("x", 200) + fmt.Sprint(i)) // one value, as far as it is kept
		}
		few.add(fmt.Sprint(i))
	}
	if got, others := few.mostFrequent(2); len(got) != 2 || got[0].Count != 45 || len(got[0].Value) != maxValue+3 || got[1] != (Count{Value: "0", Count: 1}) || others != 9 || few.over {
		t.Errorf("%+v, %d", got, others)
	}
}

// TestBounded: a trace with ever new names costs no more than the bounds.
func TestBounded(t *testing.T) {
	b := New()
	in := &endless{}
	r := timeline.NewReader(in)
	for range 60_000 {
		rec, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		b.Add(rec)
	}
	out := b.Report(5, &timeline.Reader{})
	if len(b.probes) != maxProbes || out.Others != out.Events-maxProbes || out.Events != 59_999 || b.budget.left < 0 || out.Delivered != out.Events {
		t.Errorf("%d probes, %d others of %d", len(b.probes), out.Others, out.Events)
	}
}

// endless is a trace whose every hit is of another probe, task and value.
type endless struct {
	n    int
	left []byte
}

// Read makes lines.
func (e *endless) Read(p []byte) (int, error) {
	if len(e.left) == 0 {
		if e.n == 0 {
			e.left = []byte(`{"type":"start","data":{"timeNs":1,"bootNs":0,"probes":[]}}` + "\n")
		} else {
			e.left = fmt.Appendf(nil, `{"type":"hit","data":{"timeNs":%d,"cpu":%d,"probe":"a/%d","stage":"return","durationNs":%d,"symbol":"f%d","task":{"pid":%d,"comm":"c%d"},"args":[{"name":"a%d","type":"u64","text":"%d"}],"text":""}}`+"\n",
				e.n+1, e.n%64, e.n, e.n, e.n, e.n, e.n, e.n, e.n)
		}
		e.n++
	}
	n := copy(p, e.left)
	e.left = e.left[n:]
	return n, nil
}

// FuzzReport: whatever a file has, its sums close or it is refused.
func FuzzReport(f *testing.F) {
	trace, err := os.ReadFile("../../../internal/show/timeline/testdata/trace.ndjson")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(trace)
	f.Add(trace[:len(trace)/2])
	f.Fuzz(func(t *testing.T, trace []byte) {
		r, err := summarize(trace, 3)
		if err != nil {
			return
		}
		sum := r.Others
		for _, p := range r.Probes {
			sum += p.Events
		}
		if sum != r.Events || r.Ended == "" && r.Missing != 0 || uint64(int64(r.Events+r.Unshown)+r.Missing) != r.Delivered {
			t.Errorf("%+v", r)
		}
	})
}
