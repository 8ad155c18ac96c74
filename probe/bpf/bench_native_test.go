//go:build linux && amd64

package bpf

import "testing"

// benchProgram is a program to measure, with its maps.
type benchProgram struct {
	name, src string
	maps      []MapSpec
}

var benchPrograms = []benchProgram{
	{"nothing", "mov r0, 0\nexit", nil},
	{"filter", filterProgram, nil},
	{"count", countProgram, []MapSpec{{Name: "hits", Kind: PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1}}},
	{"count-hash", hashCountProgram, []MapSpec{{Name: "hash", Kind: Hash, KeySize: 4, ValueSize: 8, MaxEntries: 1}}},
	{"record", recordProgram, []MapSpec{{Name: "ring", Kind: RingBuf, MaxEntries: 1 << 20}}},
	{"read", readProgram, []MapSpec{{Name: "ring", Kind: RingBuf, MaxEntries: 1 << 20}}},
	{"output", outputProgram, []MapSpec{{Name: "ring", Kind: RingBuf, MaxEntries: 1 << 20}}},
}

// load compiles the program and puts it in place.
func (c *benchProgram) load(b *testing.B, n *native) (*compiled, []*Map) {
	b.Helper()
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
	code, err := n.load(p, Layout{Fixups: true}, BlockConfig{Clock: Clock{Mult: 1 << 31}}, RegsSize)
	if err != nil {
		b.Fatal(err)
	}
	return code, maps
}

// BenchmarkCompiledLoop is what one instruction of a compiled loop costs.
func BenchmarkCompiledLoop(b *testing.B) {
	n := newNative(b)
	c := benchProgram{src: benchLoop}
	code, _ := c.load(b, n)
	if _, err := code.run(benchContext()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		n.call()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/12000, "ns/insn")
}
