package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

var update = flag.Bool("update", false, "write what is drawn to testdata")

// golden compares what is drawn with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

// buckets are these counts of [0, 10), [10, 20) and so on.
func buckets(counts ...uint64) (bs []Bucket) {
	for i, n := range counts {
		bs = append(bs, Bucket{At: float64(10 * i), Label: fmt.Sprintf("[%d, %d)", 10*i, 10*i+10), Count: n})
	}
	return bs
}

func heat() *Heat {
	h := &Heat{Title: "@us[0]", Every: time.Second}
	for i := range 30 {
		h.add(buckets(uint64(i), 0, uint64(i*i), uint64(30-i)%5))
	}
	return h
}

func TestText(t *testing.T) {
	var all []string
	all = append(all, Hist{Buckets: buckets(0, 1, 50, 100, 99)}.Lines(60)...)
	all = append(all, Hist{Buckets: buckets(math.MaxUint64, math.MaxUint64/2)}.Lines(60)...)
	for _, w := range []int{80, 25, 1} {
		all = append(all, fmt.Sprintf("-- %d --", w))
		all = append(all, heat().Lines(w, ASCII, false)...)
		all = append(all, heat().Lines(w, Unicode, false)...)
	}
	all = append(all, "-- colour --")
	for _, l := range heat().Lines(25, Unicode, true) {
		all = append(all, strings.ReplaceAll(l, "\x1b", "^["))
	}
	all = append(all, "-- nothing --")
	all = append(all, (&Heat{Every: time.Second}).Lines(80, ASCII, false)...)
	golden(t, "text", strings.Join(all, "\n")+"\n")
}

func TestSparkline(t *testing.T) {
	for _, c := range []struct {
		values []float64
		width  int
		want   string
	}{
		{nil, 3, "   "},
		{[]float64{0, 1, 2, 4, 8}, 5, " ▁▂▄█"},
		{[]float64{100, 0, 1, 2, 4, 8}, 5, " ▁▂▄█"},
		{[]float64{7}, 3, "  █"},
		{[]float64{0, 0}, 3, "   "},
		{[]float64{7}, 0, ""},
	} {
		if got := Unicode.Sparkline(c.values, c.width); got != c.want {
			t.Errorf("%v in %d is %q, want %q", c.values, c.width, got, c.want)
		}
	}
}

// TestGlyphs: letters beyond ASCII are for who can show them.
func TestGlyphs(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want Glyphs
	}{
		{nil, ASCII},
		{map[string]string{"LANG": "en_US.UTF-8"}, Unicode},
		{map[string]string{"LANG": "C.utf8"}, Unicode},
		{map[string]string{"LANG": "C.utf8", "TERM": "dumb"}, ASCII},
		{map[string]string{"LANG": "C.utf8", "LC_ALL": "C"}, ASCII},
		{map[string]string{"LANG": "de_DE", "LC_CTYPE": "C.UTF-8"}, Unicode},
	} {
		if got := GlyphsOf(func(name string) string { return c.env[name] }); string(got.Spark) != string(c.want.Spark) {
			t.Errorf("%v: %q", c.env, string(got.Spark))
		}
	}
}

// TestLong: a map that goes on for days keeps all counts in little.
func TestLong(t *testing.T) {
	s := Heats{Every: time.Second}
	const n = 5*maxColumns + 13
	for i := range n {
		of := map[string][]Bucket{"all": buckets(1)}
		if i >= n/2 {
			of["late"] = buckets(1)
		}
		s.Add(of)
	}
	all, left := s.List()
	if len(all) != 2 || left != 0 {
		t.Fatalf("%d maps, %d left", len(all), left)
	}
	for i, want := range []uint64{n, n - n/2} {
		rows, columns, every, _ := all[i].fit(100)
		sum := uint64(0)
		for _, c := range rows[0].counts {
			sum += c
		}
		if sum != want || columns > 100 || time.Duration(columns)*every < n*time.Second || time.Duration(columns-1)*every > n*time.Second || len(all[i].buckets[0].counts) > maxColumns {
			t.Errorf("%s: %d counted in %d columns of %v, want %d in %d s", all[i].Title, sum, columns, every, want, n)
		}
	}
	of := map[string][]Bucket{}
	for i := range maxHeats + 5 {
		of[fmt.Sprint(i)] = buckets(1)
	}
	s = Heats{}
	s.Add(of)
	if all, left := s.List(); len(all) != maxHeats || left != 5 {
		t.Errorf("%d maps, %d left", len(all), left)
	}
}

func TestPicture(t *testing.T) {
	var b bytes.Buffer
	if err := Picture(&b, "maps <of> a script", []Drawing{Hist{Title: "@h", Buckets: buckets(3, 0, 100)}, heat(), Hist{Title: "empty"}}); err != nil {
		t.Fatal(err)
	}
	golden(t, "picture.svg", b.String())
	b.Reset()
	if err := Picture(&b, "", []Drawing{heat()}, "1 of 9 intervals is missing."); err != nil || !strings.Contains(b.String(), ">1 of 9 intervals is missing.</text>") {
		t.Errorf("%v, %s", err, b.String())
	}
	b.Reset()
	if err := Picture(&b, "", make([]Drawing, 0)); err != nil || !strings.Contains(b.String(), "nothing was counted") {
		t.Errorf("of nothing: %v\n%s", err, b.String())
	}
	many := make([]Drawing, MaxDrawings+3)
	for i := range many {
		many[i] = Hist{Title: "@"}
	}
	b.Reset()
	if err := Picture(&b, "", many); err != nil || !strings.Contains(b.String(), "3 more are left out") {
		t.Errorf("of many: %v", err)
	}
	failed := errors.New("full")
	if err := Picture(full{failed}, "", many); !errors.Is(err, failed) {
		t.Errorf("on a full disk: %v", err)
	}
}

// full is a disk.
type full struct{ error }

func (f full) Write([]byte) (int, error) { return 0, f.error }

// FuzzPicture: whatever names are, the picture is XML that stands for them and has nothing else in it.
func FuzzPicture(f *testing.F) {
	f.Add("@h", "[0, 1)", uint64(7))
	f.Add("</title><script>alert(1)</script>", `" onload="x`, uint64(math.MaxUint64))
	f.Add("\x00\xff]]>&amp;", "\u2028\ufffe\x1b[2J", uint64(0))
	f.Fuzz(func(t *testing.T, title, label string, n uint64) {
		h := &Heat{Title: title, Every: time.Second}
		bs := []Bucket{{Label: label, Count: n}, {At: 1, Label: title, Count: n / 2}}
		h.add(bs)
		var b bytes.Buffer
		if err := Picture(&b, title, []Drawing{Hist{Title: title, Buckets: bs}, h}); err != nil {
			t.Fatal(err)
		}
		if !utf8.Valid(b.Bytes()) {
			t.Fatalf("not UTF-8: %q", b.String())
		}
		d := xml.NewDecoder(&b)
		for {
			tok, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%q, %q: %v", title, label, err)
			}
			e, ok := tok.(xml.StartElement)
			if !ok {
				continue
			}
			switch e.Name.Local {
			case "svg", "title", "rect", "text", "g":
			default:
				t.Errorf("an element <%s> of %q, %q", e.Name.Local, title, label)
			}
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
					t.Errorf("an attribute %s of %q, %q", a.Name.Local, title, label)
				}
			}
		}
		for _, l := range append(h.Lines(40, Unicode, false), Hist{Buckets: bs}.Lines(40)...) {
			_ = l
		}
	})
}

// TestHeatsLate: a column is an interval, also where several were over before anybody looked.
func TestHeatsLate(t *testing.T) {
	s := Heats{Every: 200 * time.Millisecond}
	for _, ms := range []time.Duration{200, 750, 800, 1000, 2900, 3000} { // two of them late
		s.AddAt(ms*time.Millisecond, map[string][]Bucket{"@": {{At: 1, Label: "1", Count: 1}}})
	}
	all, _ := s.List()
	if len(all) != 1 || all[0].columns != 15 {
		t.Fatalf("%d heats, %d columns of 15", len(all), all[0].columns)
	}
	want := []uint64{1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}
	if got := all[0].buckets[0].counts; !slices.Equal(got, want) {
		t.Errorf("counts %v, want %v", got, want)
	}
}
