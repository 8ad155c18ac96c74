package flow

import (
	"bytes"
	"testing"
)

// BenchmarkAnalyze is one function of 4 KiB; BenchmarkRegion one decision in it.
func BenchmarkAnalyze(b *testing.B) {
	body := bytes.Repeat(code(b, "55 4889e5 4883ec10 e800000000 85c0 7403 83c001 c9 c3 660f1f440000 90"), 128)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		Analyze(Input{Addr: base, Code: body})
	}
}

func BenchmarkRegion(b *testing.B) {
	f := Analyze(Input{Addr: base, Code: code(b, "55 4889e5 4883ec10 e800000000 85c0 7403 83c001 c9 c3")})
	b.ReportAllocs()
	for b.Loop() {
		if _, no := f.Region(0, Ours); no != nil {
			b.Fatal(no)
		}
	}
}
