package bpf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWarnings: each mistake is reported at its instruction, and nothing else.
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
			[]string{`7 the read value is not an address: it is a number less than 1 << 48`}},
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
		{"the map itself", "ldmap r1, 0\nldxdw r0, [r1+0]\nexit", []string{`2 the read value is not an address: it is map "array" itself`}},
		{"a number", "mov r1, 4096\nldxdw r0, [r1+0]\nexit", []string{"1 the read value is not an address: it is a number less than 1 << 48"}},
		{"code", "mov r0, 0\nexit\nmov r0, 1\nexit", []string{"2 this and what follows, up to instruction 3, is never executed"}},
		{"wrong map", "ldmap r1, 2\nmov r2, r10\nadd r2, -8\nstdw [r10-8], 0\ncall 1\nmov r0, 0\nexit", []string{"5 argument 1 of map_lookup_elem is not a map of the right kind"}},
		{"record", "ldmap r1, 2\nmov r2, 8\nmov r3, 0\ncall 131\nmov r1, r0\nmov r2, 0\ncall 132\nmov r0, 0\nexit", []string{"7 argument 1 of ringbuf_submit may be 0: the record was not checked"}},
		{"record of some size", sized + "stb [r0+15], 1\n" + submit, nil},
		{"behind a record of some size", sized + "stb [r0+16], 1\n" + submit, []string{`8 1 bytes at offset 16 are outside the record of ring "ring", which has 16`}},
		{"far outside the stack", "mov r0, 0\nmov r1, r10\nadd r1, 0x1fffffff\nstxb [r1+0], r0\nexit", []string{"3 1 bytes at offset 536870911 are outside the stack frame, which has 512"}},
		{"far below the stack", "mov r0, 0\nmov r1, r10\nadd r1, -0x1fffffff\nldxb r0, [r1-4]\nexit", []string{"3 1 bytes at offset -536870915 are outside the stack frame, which has 512"}},
		{"out of range", "mov r1, r10\nadd r1, 0x7fffffff\nadd r1, 0x7fffffff\nstb [r1+0], 0\nmov r0, 0\nexit", []string{
			"1 this moves an address by 2147483647 bytes from the stack frame, out of range", "2 this moves an address by 4294967294 bytes from the stack frame, out of range",
			"3 1 bytes at offset 4294967294 are outside the stack frame, which has 512"}},
		{"out of range by a register", lookup + "lddw r1, 1000000000000\nsub r0, r1\nmov r0, 0\nexit", []string{`8 this moves an address by -1000000000000 bytes from the value of map "array", out of range`}},
		{"outside the stack, somewhere", "ldxdw r2, [r1+0]\nand r2, 7\nmov r3, r10\nadd r3, r2\nldxb r0, [r3+0]\nexit", []string{"4 1 bytes at offset 0 are outside the stack frame, which has 512"}},
		{"perhaps outside the stack", "ldxdw r2, [r1+0]\nand r2, 15\nstdw [r10-8], 0\nmov r3, r10\nadd r3, r2\nldxb r0, [r3-8]\nexit", nil},
		{"stack at a place of several", "ldxdw r2, [r1+0]\nand r2, 7\nmov r3, r10\nadd r3, r2\nldxb r0, [r3-16]\nexit", []string{"4 1 bytes of the stack are read at r10-16, which may not have been written"}},
		{"stack written at a place of several", "ldxdw r2, [r1+0]\nand r2, 7\nmov r3, r10\nadd r3, r2\nstb [r3-16], 1\nldxb r0, [r10-10]\nexit", nil},
		{"stack written in a loop", "mov r1, 0\nagain:\nmov r2, r10\nadd r2, r1\nstb [r2-8], 1\nadd r1, 1\njlt r1, 8, again\nldxdw r0, [r10-8]\nexit", nil},
		{"stack not aligned", "stdw [r10-16], 0\nldxdw r0, [r10-12]\nstxw [r10-22], r0\nexit", []string{"1 8 bytes of the stack at r10-12 are not aligned: Linux's verifier refuses that", "2 4 bytes of the stack at r10-22 are not aligned: Linux's verifier refuses that"}},
		{"stack not aligned, by a register", "ldxdw r2, [r1+0]\nand r2, 8\nmov r3, r10\nadd r3, r2\nstdw [r3-20], 0\nmov r0, 0\nexit", []string{"4 8 bytes of the stack at r10-20 to r10-12 are not aligned: Linux's verifier refuses that"}},
		{"sum of addresses", "mov r2, r10\nadd r2, r1\nmov r0, 0\nexit", []string{"1 this adds two addresses: of the stack frame and of the context"}},
		{"difference of addresses", "mov r2, r10\nadd r2, -8\nsub r2, r10\nmov r0, r2\nexit", nil},
		{"a number less an address", "mov r0, 0\nsub r0, r10\nexit", []string{"1 this subtracts an address, of the stack frame, from a number"}},
		{"bits of an address", "mov r0, r10\nand r0, -8\nexit", []string{"1 this computes with an address, of the stack frame, as if it were a number"}},
		{"half an address", "mov r0, r10\nadd32 r0, 4\nexit", []string{"1 this computes with an address, of the stack frame, as if it were a number"}},
		{"computing with a map", "ldmap r1, 0\nadd r1, 8\nmov r0, 0\nexit", []string{`2 this computes with map "array" itself, which has no address`}},
		{"computing before the check", strings.Replace(lookup, "ldmap r1, 0", "ldmap r1, 1", 1) + "mov r1, r0\nadd r1, 8\njeq r0, 0, out\nldxdw r0, [r0+0]\nout:\nexit", []string{`7 the value of map "hash" is computed with before a check for 0`}},
		{"the guest's memory", "ldxdw r2, [r1+0]\nldxdw r0, [r2+16]\nexit", []string{"1 the read address is not the program's: read the guest's memory by bpf_probe_read_kernel and _user"}},
		{"behind a record's end", "ldmap r1, 2\nmov r2, 8\nmov r3, 0\ncall 131\njeq r0, 0, out\nmov r6, r0\nmov r1, r0\nmov r2, 0\ncall 132\nstdw [r6+0], 1\nout:\nmov r0, 0\nexit",
			[]string{"10 the written address is not the program's: read the guest's memory by bpf_probe_read_kernel and _user"}},
		{"size", "mov r1, r10\nadd r1, -16\nmov r2, -8\nmov r3, 0\ncall 4\nexit", []string{"4 argument 2 of probe_read, a size, is more than the 65536 bytes that can be"}},
		{"two jumps for ever", "mov r0, 0\nagain:\nadd r0, 1\nja again\nexit", []string{"1 no path leads from here to an end of the function: it runs until its budget is used up", "3 this is never executed"}},
		{"a comparison that always holds", "mov r0, 0\nagain:\nadd r0, 1\nand r0, 7\njlt r0, 8, again\nexit", []string{"1 no path leads from here to an end of the function: it runs until its budget is used up"}},
		{"a function without a result", "call local f\nexit\nf:\nmov r1, 1\nexit", []string{"1 r0 is read and may not have been written: it is the result"}},
		{"a function with a result", "call local f\nexit\nf:\nmov r0, 1\nexit", nil},
		{"registers of the caller", "mov r6, 1\ncall local f\nmov r0, r1\nexit\nf:\nmov r0, r6\nexit", []string{"2 r1 is read and may not have been written", "4 r6 is read and may not have been written"}},
		{"a function that returns its stack", "call local f\nmov r0, 0\nexit\nf:\nmov r0, r10\nadd r0, -8\nexit", []string{"5 the function returns an address in its own stack frame, which ends here"}},
		{"a function that writes the caller's stack", "mov r1, r10\nadd r1, -8\ncall local f\nldxdw r0, [r10-8]\nexit\nf:\nstdw [r1+0], 1\nmov r0, 0\nexit", nil},
		{"a function that compares", strings.Replace(lookup, "ldmap r1, 0", "ldmap r1, 1", 1) + "mov r6, r0\nmov r1, r0\ncall local f\njeq r0, 0, out\nldxdw r0, [r6+0]\nout:\nexit\nf:\nmov r0, 0\njeq r1, 0, no\nmov r0, 1\nno:\nexit", nil},
		// What paths that are followed one by one show.
		{"set in a loop that runs", "mov r6, 0\nagain:\nadd r6, 1\njgt r6, 1000, out\ncall 7\nja again\nout:\nexit", nil},
		{"set in a loop that may not run", "ldxdw r6, [r1+0]\nagain:\nadd r6, 1\njgt r6, 1000, out\ncall 7\nja again\nout:\nexit", []string{"5 r0 is read and may not have been written: it is the result"}},
		{"stack set in a loop that runs", "mov r6, 0\nagain:\njgt r6, 3, out\nstdw [r10-8], 5\nadd r6, 1\nja again\nout:\nldxdw r0, [r10-8]\nexit", nil},
		{"set and read under one condition", "ldxdw r6, [r1+0]\nmov r7, 0\njne r6, 0, over\nmov r8, 1\nmov r7, 1\nover:\nmov r0, 0\njeq r7, 0, out\nmov r0, r8\nout:\nexit", nil},
		{"set and read under the opposite", "ldxdw r6, [r1+0]\nmov r7, 0\njne r6, 0, over\nmov r8, 1\nmov r7, 1\nover:\nmov r0, 0\njne r7, 0, out\nmov r0, r8\nout:\nexit", []string{"7 r8 is read and may not have been written"}},
		{"outside on one path", lookup + "ldxdw r6, [r10-8]\nmov r7, 0\njeq r6, 5, over\nmov r7, 16\nover:\nadd r0, r7\nldxb r0, [r0+0]\nexit", []string{`11 1 bytes at offset 16 are outside the value of map "array", which has 16`}},
		{"an endless number of paths", "ldxdw r6, [r1+0]\nagain:\nldxdw r7, [r1+8]\nmov r8, r7\nadd r6, r7\njne r6, 0, again\nmov r0, r9\nexit", []string{"5 r9 is read and may not have been written"}},
		{"an address negated", "mov r0, r10\nneg r0\nexit", []string{"1 this computes with an address, of the stack frame, as if it were a number"}},
		{"bytes of an address exchanged", "mov r0, r10\nbe64 r0\nexit", []string{"1 this computes with an address, of the stack frame, as if it were a number"}},
		// The verifier's knowledge about dead code: no warnings about it.
		{"constant on the left", "mov32 r2, 4\nldxdw r0, [r1+0]\njlt32 r0, 4, out\njgt32 r2, r0, dead\nout:\nmov r0, 0\nexit\ndead:\nmov r0, r9\nexit", nil},
		{"constant on the left, with sign", "mov32 r2, -4\nldxdw r0, [r1+0]\njslt32 r0, -4, out\njsgt32 r2, r0, dead\nout:\nmov r0, 0\nexit\ndead:\nmov r0, r9\nexit", nil},
		{"half of what was spilled", "ldxdw r2, [r1+0]\nand r2, 15\nstxdw [r10-8], r2\nldxw r3, [r10-8]\njgt r3, 15, dead\nldxw r3, [r10-4]\njne r3, 0, dead\nldxb r3, [r10-8]\njgt r3, 15, dead\nmov r0, 0\nexit\ndead:\nmov r0, r9\nexit", nil},
		{"more than was spilled", "stw [r10-8], 7\nstw [r10-4], 1\nldxdw r3, [r10-8]\nlddw r2, 0x100000007\njne r3, r2, dead\nmov r0, 0\nexit\ndead:\nmov r0, r9\nexit", nil},
		{"spilled twice", "ldxdw r2, [r1+0]\nand r2, 15\nstxdw [r10-8], r2\nldxdw r4, [r1+8]\nstxw [r10-4], r4\nldxw r3, [r10-8]\njgt r3, 15, live\nmov r0, 0\nexit\nlive:\nmov r0, r9\nexit", []string{"9 r9 is read and may not have been written"}},
		{"a function while the caller has a record", "ldmap r1, 2\nmov r2, 8\nmov r3, 0\ncall 131\njeq r0, 0, out\nmov r6, r0\ncall local f\nmov r1, r6\nmov r2, 0\ncall 132\nout:\nmov r0, 0\nexit\nf:\nmov r0, 1\nexit", nil},
		{"a function that keeps a record", "call local f\nmov r0, 0\nexit\nf:\nldmap r1, 2\nmov r2, 8\nmov r3, 0\ncall 131\nmov r0, 0\nexit", []string{"9 the record that instruction 7 reserves may not have been submitted or discarded"}},
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
		if err != nil || slices.Contains([]string{"warn.o", "core-task.o", "kernel.o", "ksyms.o", "owntype.o", "prune.o", "show.o"}, filepath.Base(f)) {
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
