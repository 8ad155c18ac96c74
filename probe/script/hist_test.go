package script

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"testing"
)

// slowBucket is the bucket of a number as bpftrace's documents say it.
func slowBucket(n int64, k int) int {
	switch {
	case n < 0:
		return 0
	case n < 1<<k:
		return int(n) + 1
	}
	p := bits.Len64(uint64(n)) - 1 - k
	return (p+1)<<k + int(n>>p)&(1<<k-1) + 1
}

// TestBuckets puts numbers into histograms by programs, and compares with the rule and
// with the labels.
func TestBuckets(t *testing.T) {
	values := []int64{math.MinInt64, -1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 63, 64, 65, 127, 128, 1000, 1 << 20, 1<<20 - 1, 1<<20 + 12345, 1 << 40, 1<<62 + 1, math.MaxInt64}
	for k := range 6 {
		for _, v := range values {
			r, err := runScript(t, fmt.Sprintf("BEGIN { @h = hist($1, %d); }", k), []string{fmt.Sprint(v)}, false, 0)
			if err != nil {
				t.Fatal(err)
			}
			b := slowBucket(v, k)
			if b >= buckets(Type{Kind: Hist, Size: k}) {
				t.Fatalf("hist(%d, %d): bucket %d of %d", v, k, b, buckets(Type{Kind: Hist, Size: k}))
			}
			if want := fmt.Sprintf("@h:\n%-16s       1 |", logLabel(k, b)); !strings.Contains(r.out, want) {
				t.Errorf("hist(%d, %d) prints\n%swant\n%s", v, k, r.out, want)
			}
			if v >= 0 && b > 0 {
				if lo, hi := edge(k, b-1), edge(k, b); uint64(v) < lo || uint64(v) >= hi {
					t.Errorf("hist(%d, %d): bucket %d is from %d to %d", v, k, b, lo, hi)
				}
			}
		}
	}
	for _, v := range []int64{-100, -3, -2, -1, 0, 4, 5, 6, 7, 8, 99, math.MaxInt64} {
		r, err := runScript(t, "BEGIN { @h = lhist($1, -2, 7, 3); }", []string{fmt.Sprint(v)}, false, 0)
		if err != nil {
			t.Fatal(err)
		}
		want := "(..., -2)"
		if v >= 7 {
			want = "[7, ...)"
		} else if v >= -2 {
			lo := -2 + (v+2)/3*3
			want = fmt.Sprintf("[%d, %d)", lo, lo+3)
		}
		if !strings.Contains(r.out, fmt.Sprintf("@h:\n%-16s       1 |", want)) {
			t.Errorf("lhist(%d) prints\n%swant %s", v, r.out, want)
		}
	}
}

// TestHistText compares with histograms as bpftrace has them.
func TestHistText(t *testing.T) {
	counts := make([]uint64, buckets(Type{Kind: Hist}))
	for _, n := range []int64{-5, 2, 3, 7, 20} {
		counts[slowBucket(n, 0)]++
	}
	want := `(..., 0)               1 |@@@@@@@@@@@@@@@@@@@@@@@@@@                          |
[0]                    0 |                                                    |
[1]                    0 |                                                    |
[2, 4)                 2 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[4, 8)                 1 |@@@@@@@@@@@@@@@@@@@@@@@@@@                          |
[8, 16)                0 |                                                    |
[16, 32)               1 |@@@@@@@@@@@@@@@@@@@@@@@@@@                          |

`
	if got := histText(Type{Kind: Hist}, counts, 1); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
