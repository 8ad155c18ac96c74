//go:build linux && amd64

package bpf

import "testing"

// BenchmarkCompiled runs compiled programs natively, called through the test's
// entry code, whose own cost is the row "nothing".
func BenchmarkCompiled(b *testing.B) {
	perCPU := MapSpec{Name: "hits", Kind: PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	ring := MapSpec{Name: "ring", Kind: RingBuf, MaxEntries: 1 << 20}
	hash := MapSpec{Name: "hash", Kind: Hash, KeySize: 4, ValueSize: 8, MaxEntries: 1}
	for _, c := range []struct {
		name, src string
		maps      []MapSpec
	}{
		{"nothing", "mov r0, 0\nexit", nil},
		{"filter", filterProgram, nil},
		{"count", countProgram, []MapSpec{perCPU}},
		{"count-hash", hashCountProgram, []MapSpec{hash}},
		{"record", recordProgram, []MapSpec{ring}},
		{"loop-12000-insns", benchLoop, nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			n := newNative(b)
			var maps []*Map
			for _, s := range c.maps {
				m, err := NewMap(s, 2, n)
				if err != nil {
					b.Fatal(err)
				}
				maps = append(maps, m)
			}
			p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(b, c.src), Maps: maps})
			if err != nil {
				b.Fatal(err)
			}
			code, err := n.load(p, Layout{}, BlockConfig{Clock: Clock{Mult: 1 << 31}}, RegsSize)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := code.run(benchContext()); err != nil {
				b.Fatal(err)
			}
			i := 0
			for b.Loop() {
				n.call()
				if i++; i&1023 == 0 && len(maps) > 0 && maps[0].spec.Kind == RingBuf {
					b.StopTimer()
					maps[0].Drain(func(Record) bool { return true })
					b.StartTimer()
				}
			}
			if _, failed, missed, last := BlockStats(code.block); failed+missed != 0 {
				b.Fatalf("%d runs failed, %d missed: %v", failed, missed, &last)
			}
		})
	}
}
