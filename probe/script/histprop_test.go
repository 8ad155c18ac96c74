package script

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// row is a bucket as JSON has it; numbers that a float64 would change are strings.
type row struct {
	Min, Max *json.RawMessage
	Count    json.RawMessage
}

// number reads one of the numbers of a row, or gives what stands for none.
func number(t *testing.T, raw *json.RawMessage, none int64) int64 {
	t.Helper()
	if raw == nil {
		return none
	}
	s := string(*raw)
	if u, err := strconv.Unquote(s); err == nil {
		s = u
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// randomInt is a number of any size and sign, and often one at a border.
func randomInt(r *rand.Rand) int64 {
	switch r.IntN(8) {
	case 0:
		return []int64{math.MinInt64, math.MinInt64 + 1, math.MaxInt64, math.MaxInt64 - 1, -1, 0, 1, 1 << 62}[r.IntN(8)]
	case 1:
		return int64(1)<<r.IntN(63) - r.Int64N(3) + 1
	}
	return r.Int64() >> r.IntN(64) * (1 - 2*r.Int64N(2))
}

// TestHistProperties puts numbers of all kinds into histograms: each is counted once, in the
// bucket that has it between its borders, and buckets follow one another without a gap.
func TestHistProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 60 {
		call, step := fmt.Sprintf("hist((int64)arg0, %d)", round%6), int64(0)
		if round%2 == 1 {
			low := randomInt(r) / 4
			step = 1 + r.Int64N(1<<r.IntN(40))
			call = fmt.Sprintf("lhist((int64)arg0, %d, %d, %d)", low, low+step*(1+r.Int64N(900)), step)
		}
		var hits []hit
		var values []int64
		for i := range 80 {
			v := randomInt(r)
			values = append(values, v)
			hits = append(hits, hit{fn: "vfs_read", cpu: i % testCPUs, args: [6]uint64{uint64(v)}})
		}
		out, err := runScript(t, "kprobe:vfs_read { @ = "+call+"; }", nil, true, 0, hits...)
		if err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		var line struct{ Data map[string][]row }
		if err := json.Unmarshal([]byte(out.out), &line); err != nil {
			t.Fatalf("%s: %v in %s", call, err, out.out)
		}
		all, last := int64(0), int64(math.MinInt64)
		for i, b := range line.Data["@"] {
			lo, hi, n := number(t, b.Min, math.MinInt64), number(t, b.Max, math.MaxInt64), number(t, &b.Count, 0)
			if i > 0 && lo != last+1 || lo > hi {
				t.Fatalf("%s: bucket from %d to %d behind one to %d", call, lo, hi, last)
			}
			if step > 0 && b.Min != nil && b.Max != nil && hi-lo+1 != step {
				t.Fatalf("%s: bucket from %d to %d", call, lo, hi)
			}
			in := int64(0)
			for _, v := range values {
				if v >= lo && v <= hi {
					in++
				}
			}
			if in != n {
				t.Fatalf("%s: %d in the bucket from %d to %d, want %d", call, n, lo, hi, in)
			}
			all, last = all+n, hi
		}
		if all != int64(len(values)) {
			t.Fatalf("%s: %d counted of %d", call, all, len(values))
		}
	}
}

// TestAggregateProperties compares the aggregations of numbers of all sizes with what they
// are by definition.
func TestAggregateProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 40 {
		var hits []hit
		sum, least, most := int64(0), int64(math.MaxInt64), int64(math.MinInt64)
		n := 1 + r.IntN(5)
		for i := range n {
			v := randomInt(r)
			sum, least, most = sum+v, min(least, v), max(most, v)
			hits = append(hits, hit{fn: "vfs_read", cpu: i % testCPUs, args: [6]uint64{uint64(v)}})
		}
		out, err := runScript(t, `kprobe:vfs_read { $v = (int64)arg0; @c = count(); @s = sum($v); @a = avg($v); @lo = min($v); @hi = max($v); @k[1] = max($v); @st = stats($v); }
END { printf("%ld %ld %ld %ld %ld %ld\n", @c, @s, @a, @lo, @hi, @k[1]); print(@st); clear(@c); clear(@s); clear(@a); clear(@lo); clear(@hi); clear(@k); clear(@st); }`, nil, false, 0, hits...)
		want := fmt.Sprintf("%d %d %d %d %d %d\n@st: { .count = %[1]d, .average = %[3]d, .total = %[2]d }\n\n\n", n, sum, sum/int64(n), least, most, most)
		if err != nil || out.out != want {
			t.Fatalf("%v, printed\n%swant\n%s", err, out.out, want)
		}
	}
	out, err := runScript(t, `BEGIN { @lo = min(-9223372036854775807 - 1); @hi = max(-9223372036854775807 - 1); @u = min((uint64)-1); @k[2] = max(-5); zero(@k); print((@lo, @hi, @u, @k[2], @k[3])); }`, nil, false, 0)
	want := "(-9223372036854775808, -9223372036854775808, 18446744073709551615, -5, 0)\n\n\n@hi: -9223372036854775808\n@k[2]: 0\n@lo: -9223372036854775808\n@u: 18446744073709551615\n"
	if err != nil || out.out != want {
		t.Errorf("%v, printed\n%swant\n%s", err, out.out, want)
	}
}

// TestFold: numbers that are calculated before are what programs calculate, and arguments
// that must be known before may be such.
func TestFold(t *testing.T) {
	out, err := runScript(t, `BEGIN { @ = lhist(5, 0, 4 * 1024, 1 << 10); print((7 / 2, 7 % 4, 1 << 62, 3 - 5, 9223372036854775807 + 1, 1 << 63, 4294967296 * 2147483648)); clear(@); unroll(1 + 1) { printf("x"); } }`, nil, false, 0)
	if want := "(3, 3, 4611686018427387904, -2, 9223372036854775808, -9223372036854775808, 9223372036854775808)\nxx\n\n"; err != nil || out.out != want {
		t.Errorf("%v, printed %q, want %q", err, out.out, want)
	}
}

// TestExitOnce: a program that calls exit at each of its hits writes one record about it.
func TestExitOnce(t *testing.T) {
	s, err := Compile(`kprobe:vfs_read { @n++; if (@n > 2) { exit(@n); } printf("%d\n", @n); }`, target, Options{CPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	col, err := s.Object.Load(1, bpf.Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer col.Close()
	ctx := make([]byte, bpf.RegsSize)
	for range 20 {
		if _, err := bpf.NewVM(col.Programs[0].Program, 0).Run(ctx, bpf.NoEnv{}); err != nil {
			t.Fatal(err)
		}
	}
	var exits []int64
	n := col.Maps[mapOutput].Drain(func(rec bpf.Record) bool {
		if status, ok := s.Exit(rec.Data); ok {
			exits = append(exits, status)
		}
		return true
	})
	if n != 3 || len(exits) != 1 || exits[0] != 3 {
		t.Errorf("%d records, exits %v; want two lines and one exit", n, exits)
	}
}

// TestExitRingFull: a script has called exit although its ring had no room for the record.
func TestExitRingFull(t *testing.T) {
	s, err := Compile(`kprobe:vfs_read { $i = 0; while ($i < 60000) { printf("%d%d%d%d%d%d%d%d\n", 1, 2, 3, 4, 5, 6, 7, 8); $i++; } exit(3); }`, target, Options{CPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	col, err := s.Object.Load(1, bpf.Heap{}, 10_000_000)
	if err != nil {
		t.Fatal(err)
	}
	defer col.Close()
	maps := func(name string) *bpf.Map { return col.Maps[name] }
	if status, ok := s.ExitInMaps(maps); ok {
		t.Errorf("before it ran: exit(%d)", status)
	}
	if _, err := bpf.NewVM(col.Programs[0].Program, 0).Run(make([]byte, bpf.RegsSize), bpf.NoEnv{}); err != nil {
		t.Fatal(err)
	}
	records := 0
	col.Maps[mapOutput].Drain(func(rec bpf.Record) bool {
		if _, ok := s.Exit(rec.Data); ok {
			records++
		}
		return true
	})
	if lost := col.Maps[mapOutput].RingStats().Lost; lost == 0 || records > 0 {
		t.Fatalf("%d lost, %d records of exit; want a full ring", lost, records)
	}
	if status, ok := s.ExitInMaps(maps); !ok || status != 3 {
		t.Errorf("exit(%d), %v; want 3", status, ok)
	}
}
