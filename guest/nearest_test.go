package guest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestNearest(t *testing.T) {
	names := []string{"vfs_read", "vfs_readv", "vfs_write", "kfree", "read", "", "a", "do_sys_openat2"}
	for wrong, want := range map[string]string{
		"vfs_red": "vfs_read", "vfs_raed": "vfs_read", "vfs_reads": "vfs_read", "vsf_write": "vfs_write", "kfre": "kfree", "do_sys_openat": "do_sys_openat2",
		"unlike": "", "": "a", "b": "a", "zz": "", "vfs_read": "vfs_read",
	} {
		if got := Nearest(wrong, slices.Values(names)); got != want {
			t.Errorf("%q: %q, want %q", wrong, got, want)
		}
	}
	if got, want := SymbolAdvice("kfreee", []Symbol{{Name: "x"}, {Name: "kfree"}}), "did you mean kfree?"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := SymbolAdvice("nothing_like_it", []Symbol{{Name: "x"}, {Name: "kfree"}}); got != "" {
		t.Errorf("%q, want none", got)
	}
}

// TestNearestIsLeast compares with an exhaustive search.
func TestNearestIsLeast(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		b := make([]byte, 1+random.IntN(9))
		for i := range b {
			b[i] = "abcd_"[random.IntN(5)]
		}
		return string(b)
	}
	for range 3000 {
		names := make([]string, 20)
		for i := range names {
			names[i] = word()
		}
		wrong, best := word(), ""
		least := 1 + max(len(wrong)/3, 1)
		sorted := slices.Sorted(slices.Values(names))
		for _, n := range sorted {
			if d := new(editDistance).measure(wrong, n, 1000); d < least {
				best, least = n, d
			}
		}
		if got := Nearest(wrong, slices.Values(names)); got != best {
			t.Fatalf("%q in %q: %q, want %q", wrong, sorted, got, best)
		}
	}
}

// BenchmarkNearest searches as many names as a kernel has.
func BenchmarkNearest(b *testing.B) {
	names := make([]string, 120_000)
	for i := range names {
		names[i] = fmt.Sprintf("%s_%s_%d", []string{"vfs", "ext4", "tcp", "alloc"}[i%4], []string{"read", "write", "queue", "release"}[i/4%4], i)
	}
	b.ReportAllocs()
	for b.Loop() {
		Nearest("vfs_queueing", slices.Values(names))
	}
}
