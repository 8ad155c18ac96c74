package linuxtest

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// loadText returns a kernel's text as it is before it runs, relocated by slide.
func loadText(tb testing.TB, dir string, slide uint64) flow.Text {
	tb.Helper()
	k, err := linux.Load(filepath.Join(dir, "vmlinuz"))
	if err != nil {
		tb.Fatal(err)
	}
	const size = 512 << 20
	mem := &guest.Memory{}
	if err := mem.Add(0, make([]byte, size), "ram"); err != nil {
		tb.Fatal(err)
	}
	st, err := linux.Boot(mem, k, linux.BootOptions{RAM: size, Slide: &slide})
	if err != nil {
		tb.Fatal(err)
	}
	home := guest.GVA(linux.KernelMap) + guest.GVA(st.Slide)
	v, err := linux.NewView(k, st, func(a guest.GVA, p []byte) error {
		b, err := mem.Slice(guest.GPA(a-home), len(p))
		if err != nil {
			return fmt.Errorf("read %v: %w", a, err)
		}
		copy(p, b)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	t := flow.Text{
		Read: func(a uint64, p []byte) bool { return v.ReadCode(guest.GVA(a), p) },
		Text: func(a uint64) bool { return v.IsText(guest.GVA(a)) },
		Link: func(a uint64, p []byte, back bool) { v.Pieces()[0].Link(guest.GVA(a), p, back) },
	}
	for _, r := range v.Text(false) {
		t.Ranges = append(t.Ranges, flow.Span{Lo: uint64(r.Start), Hi: uint64(r.End)})
	}
	t.Spans = func() (spans []flow.Span) {
		for _, r := range t.Ranges {
			at, last := r.Lo, uint64(0)
			add := func(lo, hi uint64) {
				if lo < hi {
					spans = append(spans, flow.Span{Lo: lo, Hi: hi})
				}
			}
			for _, s := range v.Symbols() {
				if lo := uint64(s.Addr); s.Kind == guest.SymFunc && s.Size != 0 && lo >= r.Lo && lo < r.Hi && lo != last {
					hi := min(lo+s.Size, r.Hi)
					add(at, lo)
					add(lo, hi)
					at, last = max(at, hi), lo
				}
			}
			add(at, r.Hi)
		}
		return spans
	}
	return t
}

func index(tb testing.TB, t flow.Text) *flow.Index {
	b := flow.NewBuilder(t.Text)
	if !b.AddText(t) {
		tb.Fatal("the text cannot be read")
	}
	return b.Index()
}

// TestScan: scanning a whole kernel's text finds the same branches as decoding each of its functions, for every place and for ranges.
func TestScan(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			text := loadText(t, dir, 0x1460_0000)
			b := flow.NewBuilder(text.Text)
			for _, s := range text.Spans() {
				code := make([]byte, s.Hi-s.Lo)
				if !text.Read(s.Lo, code) {
					t.Fatalf("%#x cannot be read", s.Lo)
				}
				b.AddStraight(s.Lo, code)
			}
			want, x := b.Index().Targets(0, ^uint64(0)), index(t, text)
			if got := x.Targets(0, ^uint64(0)); !slices.Equal(got, want) || len(want) < 10_000 {
				t.Fatalf("%d targets, want %d", len(got), len(want))
			}
			k := 0
			for _, r := range text.Ranges {
				for at := r.Lo; at < r.Hi; {
					n := 1 + at*7%23
					for k < len(want) && want[k] < at {
						k++
					}
					end := k
					for end < len(want) && want[end] < at+n {
						end++
					}
					if got := x.Targets(at, at+n); !slices.Equal(got, want[k:end]) {
						t.Fatalf("in [%#x, %#x) %#x, want %#x", at, at+n, got, want[k:end])
					}
					at += n
				}
			}
			checkScans(t, dir, text, want)
		})
	}
}

// checkScans checks that a kept scan of the text also serves the same kernel at another slide: nothing is scanned again, and the branches are the
// same. want are the targets of the text's branches.
func checkScans(t *testing.T, dir string, text flow.Text, want []uint64) {
	t.Helper()
	fresh := 0
	for n, slide := range []uint64{0x1460_0000, 0x2a20_0000, 0} {
		scans := flow.NewScans()
		if n == 0 {
			text.Scans = scans
			index(t, text)
			continue
		}
		scans, err := flow.DecodeScans(text.Scans.Encode())
		if err != nil {
			t.Fatal(err)
		}
		scans.OnChange(func() { fresh++ })
		other := loadText(t, dir, slide)
		other.Scans = scans
		got := index(t, other).Targets(0, ^uint64(0))
		for k := range got {
			got[k] += 0x1460_0000 - slide
		}
		if !slices.Equal(got, want) || fresh != 0 {
			t.Errorf("slid by %#x: %d targets, want %d; %d windows were scanned again", slide, len(got), len(want), fresh)
		}
	}
}

// BenchmarkScan scans a whole kernel's text, and makes a query for one place in it.
func BenchmarkScan(b *testing.B) {
	for _, dir := range kvmtest.RequireLinux(b) {
		text := loadText(b, dir, 0x1460_0000)
		spans := text.Spans()
		text.Spans = func() []flow.Span { return spans }
		b.Run(filepath.Base(dir), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				index(b, text).Targets(text.Ranges[0].Lo+5, text.Ranges[0].Lo+6)
			}
		})
		text.Scans = flow.NewScans()
		index(b, text)
		b.Run(filepath.Base(dir)+"/kept", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				index(b, text).Targets(text.Ranges[0].Lo+5, text.Ranges[0].Lo+6)
			}
		})
	}
}
