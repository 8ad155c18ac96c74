package profile

import (
	"bytes"
	"compress/gzip"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing" // keeps the target at work
)

// FuzzRead: a file is refused, or it becomes every form, and is no different from itself.
func FuzzRead(f *testing.F) {
	for _, hz := range []int{0, 99} {
		p := Build(Meta{Hz: hz}, stacks())
		var packed, plain bytes.Buffer
		if err := errors.Join(p.Write(&packed), p.WriteUncompressed(&plain)); err != nil {
			f.Fatal(err)
		}
		f.Add(packed.Bytes())
		f.Add(plain.Bytes())
		f.Add(plain.Bytes()[:plain.Len()/2])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Read(b)
		if err != nil {
			return
		}
		both, err := Diff(p, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []*pprof.Profile{p, both} {
			for i := range p.SampleType {
				g := Graph{Title: "t", Unit: Unit(p, i), Root: Tree(p, i), Compared: Compared(p)}
				rows, total, base := Top(p, i)
				if g.Root.Value != total || g.Root.Base != base {
					t.Errorf("the tree has %d and %d, the table of %d rows %d and %d", g.Root.Value, g.Root.Base, len(rows), total, base)
				}
				var svg, folded bytes.Buffer
				if err := errors.Join(g.SVG(&svg), g.HTML(io.Discard), WriteFolded(&folded, p, i)); err != nil {
					t.Fatal(err)
				}
				x := xml.NewDecoder(&svg)
				for {
					if _, err := x.Token(); err == io.EOF {
						break
					} else if err != nil {
						t.Fatal(err)
					}
				}
				if n := strings.Count(folded.String(), "\n"); n > len(p.Sample) {
					t.Errorf("%d lines of %d stacks", n, len(p.Sample))
				}
			}
		}
	})
}

// TestReadErrors: what is no profile, or could not be held, is refused.
func TestReadErrors(t *testing.T) {
	deep := buildProfile(t, 99, stacks())
	for range maxFrames {
		deep.Sample[0].Location = append(deep.Sample[0].Location, deep.Location[0])
	}
	var bomb bytes.Buffer // a member of 1 MiB again and again
	z := gzip.NewWriter(&bomb)
	if _, err := z.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	var long bytes.Buffer
	if err := deep.Write(&long); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in   []byte
		want string
	}{
		{nil, "empty input file"},
		{[]byte{0x32, 0}, "its samples have no values"},
		{[]byte("text"), "unknown wire type"},
		{long.Bytes()[:long.Len()-9], "unpacking it: unexpected EOF"},
		{long.Bytes(), "a stack has 8196 functions, at most 4096"},
		{bytes.Repeat(bomb.Bytes(), MaxProfile>>20+1), "it unpacks to more than 256 MiB"},
	} {
		if _, err := Read(c.in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q: %v, want %s", c.in, err, c.want)
		}
	}
}
