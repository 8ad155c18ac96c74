package bpf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWarnings wants each mistake to be told at its instruction, and nothing else.
func TestWarnings(t *testing.T) {
	const lookup = `
	stw [r10-4], 0
	mov r2, r10
	add r2, -4
	ldmap r1, 0
	call 1
`
	const (
		sized  = "ldxdw r2, [r1+0]\nand r2, 15\nadd r2, 1\nldmap r1, 2\nmov r3, 0\ncall 131\njeq r0, 0, out\n" // 1 to 16 bytes
		submit = "mov r1, r0\nmov r2, 0\ncall 132\nout:\nmov r0, 0\nexit"
	)
	for _, c := range []struct {
		name, src string
		want      []string
	}{
		{"nothing", "mov r0, 0\nexit", nil},
		{"array without a check", lookup + "ldxdw r0, [r0+0]\nexit", nil}, // element 0 is always there
		{"hash without a check", strings.Replace(lookup, "ldmap r1, 0", "ldmap r1, 1", 1) + "ldxdw r1, [r0+0]\nldxdw r0, [r0+8]\nexit",
			[]string{`6 the value of map "hash" is used without a check for 0`}},
		{"hash with a check", strings.Replace(lookup, "ldmap r1, 0", "ldmap r1, 1", 1) + "jeq r0, 0, out\nldxdw r0, [r0+8]\nout:\nexit", nil},
		{"hash with the wrong check", strings.Replace(lookup, "ldmap r1, 0", "ldmap r1, 1", 1) + "jne r0, 0, out\nldxdw r0, [r0+8]\nout:\nmov r0, 0\nexit",
			[]string{`7 what is read is at no address: it is a number less than 1 << 48`}},
		{"register", "add r3, 1\nmov r0, r3\nexit", []string{"0 r3 is read and may not have been written"}},
		{"register on one path", "ldxdw r1, [r1+0]\njeq r1, 0, over\nmov r3, 1\nover:\nmov r0, r3\nexit", []string{"3 r3 is read and may not have been written"}},
		{"result", "exit", []string{"0 r0 is read and may not have been written: it is the result"}},
		{"argument", "mov r1, r10\nadd r1, -16\nmov r2, 16\ncall 16\nmov r0, r1\nexit", []string{"4 r1 is read and may not have been written"}},
		{"stack", "ldxdw r0, [r10-8]\nexit", []string{"0 8 bytes of the stack are read at r10-8, which may not have been written"}},
		{"half of the stack", "stw [r10-8], 1\nldxdw r0, [r10-8]\nexit", nil},
		{"context", "ldxdw r0, [r1+164]\nexit", []string{"0 8 bytes at offset 164 are outside the context, which has 168"}},
		{"write to the context", "stdw [r1+0], 1\nmov r0, 0\nexit", []string{"0 the context cannot be written"}},
		{"value", lookup + "jeq r0, 0, out\nldxdw r0, [r0+12]\nout:\nexit", []string{`7 8 bytes at offset 12 are outside the value of map "array", which has 16`}},
		{"value behind a counter that stays inside", lookup + "mov r1, 0\nmov r3, 0\nagain:\nmov r2, r0\nadd r2, r1\nldxb r4, [r2+0]\nadd r3, r4\nadd r1, 1\njlt r1, 16, again\nmov r0, r3\nexit", nil},
		{"the map itself", "ldmap r1, 0\nldxdw r0, [r1+0]\nexit", []string{`2 what is read is at no address: it is map "array" itself`}},
		{"a number", "mov r1, 4096\nldxdw r0, [r1+0]\nexit", []string{"1 what is read is at no address: it is a number less than 1 << 48"}},
		{"code", "mov r0, 0\nexit\nmov r0, 1\nexit", []string{"2 this and what follows, up to instruction 3, is never executed"}},
		{"wrong map", "ldmap r1, 2\nmov r2, r10\nadd r2, -8\nstdw [r10-8], 0\ncall 1\nmov r0, 0\nexit", []string{"5 argument 1 of map_lookup_elem is not a map of the right kind"}},
		{"record", "ldmap r1, 2\nmov r2, 8\nmov r3, 0\ncall 131\nmov r1, r0\nmov r2, 0\ncall 132\nmov r0, 0\nexit", []string{"7 argument 1 of ringbuf_submit may be 0: the record was not checked"}},
		{"record of some size", sized + "stb [r0+15], 1\n" + submit, nil},
		{"behind a record of some size", sized + "stb [r0+16], 1\n" + submit, []string{`8 1 bytes at offset 16 are outside the record of ring "ring", which has 16`}},
		{"record that stays", "ldmap r1, 2\nmov r2, 8\nmov r3, 0\ncall 131\nmov r0, 0\nexit", []string{"6 the record that instruction 4 reserves may not have been submitted or discarded"}},
	} {
		var maps []*Map
		for _, s := range []MapSpec{
			{Name: "array", Kind: Array, KeySize: 4, ValueSize: 16, MaxEntries: 4},
			{Name: "hash", Kind: Hash, KeySize: 4, ValueSize: 16, MaxEntries: 4},
			{Name: "ring", Kind: RingBuf, MaxEntries: 4096},
		} {
			m, err := NewMap(s, 1, Heap{})
			if err != nil {
				t.Fatal(err)
			}
			maps = append(maps, m)
		}
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, c.src), Maps: maps})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, w := range p.Warnings() {
			got = append(got, fmt.Sprint(w.Index, " ", w.What))
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s:\n%q\nwant\n%q", c.name, got, c.want)
		}
	}
}

// TestNoWarnings wants none for programs that clang has made of sources without
// mistakes.
func TestNoWarnings(t *testing.T) {
	files, err := filepath.Glob("testdata/obj/*.o")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		o, err := LoadObject(b, Selection{Kernel: testKernel(t)})
		if err != nil || slices.Contains([]string{"warn.o", "core-task.o", "kernel.o"}, filepath.Base(f)) {
			continue
		}
		c, err := o.Load(2, Heap{}, 0)
		if err != nil {
			t.Errorf("%s: %v", f, err)
			continue
		}
		for _, p := range c.Programs {
			if w := p.Warnings(); len(w) > 0 {
				t.Errorf("%s: %s: %v", f, p.Name(), &w[0])
			}
		}
		c.Close()
	}
}
