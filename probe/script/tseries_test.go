package script

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// ticks are hits, each a tenth of a second after the one before, on the vCPUs in
// turn.
func ticks(at time.Duration, values ...int64) (hs []hit) {
	for i, v := range values {
		hs = append(hs, hit{fn: "vfs_read", cpu: i % testCPUs, pid: uint32(i), time: uint64(at + time.Duration(i)*100*time.Millisecond), args: [6]uint64{uint64(v)}})
	}
	return hs
}

// bars are the rows of a graph: the time, the column of the mark, the column of the
// zero line or -1, and the text after it.
func bars(low, high string, rows ...[4]any) string {
	var b strings.Builder
	head := strings.Repeat(" ", 13) + fmt.Sprintf("%-21s%32s", low, high) + "\n"
	b.WriteString(head + "hh:mm:ss.ms  |" + strings.Repeat("_", 51) + "|\n")
	for _, r := range rows {
		line := []byte("|" + strings.Repeat(" ", 51) + "|")
		if at := r[2].(int); at >= 0 {
			line[at] = '.'
		}
		if at := r[1].(int); at >= 0 {
			line[at] = '*'
		}
		fmt.Fprintf(&b, "00:00:%s %s %v\n", r[0], line, r[3])
	}
	b.WriteString(strings.Repeat(" ", 13) + "v" + strings.Repeat("_", 51) + "v\n" + head + "\n")
	return b.String()
}

// TestSeries draws series as bpftrace's own tests have them (tests/runtime/outputs), and
// the values of one interval become one in each way.
func TestSeries(t *testing.T) {
	was := time.Local
	time.Local = time.UTC
	defer func() { time.Local = was }()
	zigzag := bars("-5", "5", [4]any{"00.100", 0, 26, -5}, [4]any{"00.200", 5, 26, -4}, [4]any{"00.300", 10, 26, -3}, [4]any{"00.400", 15, 26, -2}, [4]any{"00.500", 20, 26, -1},
		[4]any{"00.600", 26, 26, 0}, [4]any{"00.700", 31, 26, 1}, [4]any{"00.800", 36, 26, 2}, [4]any{"00.900", 41, 26, 3}, [4]any{"01.000", 46, 26, 4}, [4]any{"01.100", 52, 26, 5})
	nine := func(lo, hi string, v any, at int) string {
		var rows [][4]any
		for i := range 5 {
			rows = append(rows, [4]any{fmt.Sprintf("00.%d00", i+5), at, -1, v})
		}
		return bars(lo, hi, rows...)
	}
	var ten []int64
	for i := range int64(100) {
		ten = append(ten, i%10)
	}
	dense := ticks(0, ten...)
	for i := range dense {
		dense[i].time = uint64(i) * 10e6
	}
	for _, c := range []struct {
		script string
		hits   []hit
		want   string
	}{
		{`@ = tseries((int64)arg0, 100ms, 20);`, ticks(100*time.Millisecond, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5), "@:\n" + zigzag},
		{`@a = tseries(arg0, 100ms, 5);`, dense, "@a:\n" + nine("8", "10", 9, 26)},
		{`@a = tseries(arg0, 100ms, 5, "avg");`, dense, "@a:\n" + nine("3", "5", 4, 26)},
		{`@a = tseries(arg0, 100ms, 5, "max");`, dense, "@a:\n" + nine("8", "10", 9, 26)},
		{`@a = tseries(arg0, 100ms, 5, "min");`, dense, "@a:\n" + nine("0", "1", 0, 0)},
		{`@a = tseries(arg0, 100ms, 5, "sum");`, dense, "@a:\n" + nine("44", "46", 45, 26)},
		{`@a[pid < 2 ? "one" : "two"] = tseries(arg0, 100ms, 4);`, ticks(0, 0, 5, 4, 4), "@a[one]:\n" + bars("0", "5", [4]any{"00.000", 0, -1, 0}, [4]any{"00.100", 52, -1, 5}, [4]any{"00.200", -1, -1, "-"}, [4]any{"00.300", -1, -1, "-"}) +
			"@a[two]:\n" + bars("3", "5", [4]any{"00.200", 26, -1, 4}, [4]any{"00.300", 26, -1, 4})},
		{`@a[1] = tseries(arg0, 100ms, 4); if (pid == 3) { delete(@a, 1); } @b = tseries(arg0, 1s, 4); if (pid == 3) { delete(@b); }`, ticks(0, 1, 2, 3, 4), ""},
	} {
		r, err := runScript(t, "kprobe:vfs_read { "+c.script+" }", nil, false, 0, c.hits...)
		if err != nil {
			t.Errorf("%s: %v", c.script, err)
			continue
		}
		if want := "\n\n" + c.want; r.out != want || r.warnings != "" {
			t.Errorf("%s prints\n%s\nwant\n%s\nwarnings %s", c.script, r.out, want, r.warnings)
		}
	}
	r, err := runScript(t, `kprobe:vfs_read { @ = tseries((int64)arg0, 1s, 3, "sum"); @k[1] = tseries(arg0, 1us, 1); }`, nil, true, 0, ticks(900*time.Millisecond, 1, -7, 1<<53+1)...)
	want := `{"type": "tseries", "data": {"@": [{"interval_start":"2000-02-29 00:00:00.000000000","value":1},{"interval_start":"2000-02-29 00:00:01.000000000","value":9007199254740986}]}}` + "\n" +
		`{"type": "tseries", "data": {"@k": {"1": [{"interval_start":"2000-02-29 00:00:01.100000000","value":"9007199254740993"}]}}}` + "\n"
	if err != nil || r.out != want {
		t.Errorf("%v, printed\n%swant\n%s", err, r.out, want)
	}
	for _, c := range [][2]string{
		{`@ = tseries(1, arg0, 5)`, "tseries: invalid interval_ns value"}, {`@ = tseries(1, 1s, arg0)`, "tseries: invalid num_intervals value"},
		{`@ = tseries(1, 0, 5)`, "tseries() interval_ns must be >= 1 (0 provided)"}, {`@ = tseries(1, 1s, 5000)`, "tseries() num_intervals must be >= 1 and <= 4096 (5000 provided)"},
		{`@ = tseries(1, 1s, 5, "count")`, `tseries() expects one of the following aggregation functions: avg, max, min, sum ("count" provided)`},
		{`@ = tseries(1, 1s, 5); @ = tseries(1, 2s, 5)`, "Type mismatch for @"}, {`@ = tseries(1, 1s, 5); print(@ + 1)`, "has no value for an expression"},
		{`@[1] = tseries(1, 1s, 5); for ($kv : @) { }`, "for does not support a map of tseries()"},
	} {
		if _, err := Compile("kprobe:vfs_read { "+c[0]+" }", target, Options{CPUs: 1}); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: error %v, want %s", c[0], err, c[1])
		}
	}
}
