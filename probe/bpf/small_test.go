//go:build linux && amd64

package bpf

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// TestSmallRing runs small programs that write records round and round a ring,
// with and without a reader, on both back ends.
func TestSmallRing(t *testing.T) {
	reserve := func(size int) string {
		return fmt.Sprintf(`
			mov r6, r1
			mov r2, %d
			mov r3, 0
			ldmap r1, 0
			call 131
			mov r7, r0
			jeq r0, 0, lost
			ldxdw r1, [r6+112]
			stxb [r7+%d], r1
			mov r1, r7
			jset r1, 7, never
			ldxb r8, [r7+%d]
			call 132
			mov r0, r8
			exit
		never:
			call 133
			exit
		lost:
			mov r0, 77
			exit`, size, size-1, size-1)
	}
	// Records in a row, each in one of two ways: more than the compiler gives a number of its own.
	many := "mov r6, r1\nldxdw r8, [r6+112]\n"
	for i := range 100 {
		size := 8 + 8*(i%3)
		many += fmt.Sprintf("ldmap r1, 0\nmov r2, %d\nmov r3, 0\njset r8, %d, b%d\ncall 131\njeq r0, 0, c%d\nstxdw [r0+%d], r8\nmov r1, r0\nmov r2, 0\ncall 132\nja c%d\n", size, 1<<(i%7), i, i, size-8, i) +
			fmt.Sprintf("b%d:\ncall 131\njeq r0, 0, c%d\nmov r1, r0\nmov r2, 0\ncall 133\nc%d:\nadd r8, 1\n", i, i, i)
	}
	many += "mov r0, r8\nexit"
	for _, tt := range []struct{ name, src string }{
		{"many", many}, {"output", outputProgram}, {"record", recordProgram},
		{"1 byte", reserve(1)}, {"8 bytes", reserve(8)}, {"13 bytes", reserve(13)}, {"most", reserve(MinRingSize/2 - recHeader)},
	} {
		for _, every := range []int{1, 7, 1 << 20} {
			n := newNative(t)
			spec := MapSpec{Name: "ring", Kind: RingBuf, MaxEntries: MinRingSize}
			host := testMaps(t, Heap{}, spec)
			own := testMaps(t, n, spec)
			make := func(m []*Map) *Program {
				p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, tt.src), Maps: m})
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			v := NewVM(make(host), 1)
			code, err := n.load(make(own), Layout{}, BlockConfig{CPU: 1}, RegsSize)
			if err != nil || !code.info.Small {
				t.Fatalf("%s: not compiled as a small program: %v", tt.name, err)
			}
			drain := func(m *Map) (all []byte) {
				m.Drain(func(r Record) bool { all = append(append(all, r.Data...), byte(r.CPU)); return true })
				return all
			}
			for i := range 3000 {
				ctx := regsContext(x86.Regs{RDI: uint64(i), RSI: 2, RDX: 3, RCX: 4, R8: 5, R9: 6})
				want, err := v.Run(ctx, NoEnv{})
				if err != nil {
					t.Fatal(err)
				}
				if got, err := code.run(ctx); got != want || err != nil {
					t.Fatalf("%s, run %d: %#x, %v, want %#x", tt.name, i, got, err, want)
				}
				if i%every == 0 && !bytes.Equal(drain(host[0]), drain(own[0])) {
					t.Fatalf("%s, run %d: the records differ", tt.name, i)
				}
			}
			if !bytes.Equal(host[0].area.Bytes, own[0].area.Bytes) || host[0].RingStats() != own[0].RingStats() {
				t.Errorf("%s: %+v, interpreter %+v", tt.name, own[0].RingStats(), host[0].RingStats())
			}
			if runs, failed, missed, _ := BlockStats(code.block); runs != 3000 || failed+missed != 0 {
				t.Errorf("%s: %d runs, %d failed, %d missed", tt.name, runs, failed, missed)
			}
		}
	}
}

// TestSmallRingFull: a head that says nothing sensible loses records, and
// nothing is written outside the ring.
func TestSmallRingFull(t *testing.T) {
	n := newNative(t)
	m := testMaps(t, n, MapSpec{Name: "ring", Kind: RingBuf, MaxEntries: MinRingSize})
	after, err := n.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, outputProgram), Maps: m})
	if err != nil {
		t.Fatal(err)
	}
	code, err := n.load(p, Layout{}, BlockConfig{}, RegsSize)
	if err != nil {
		t.Fatal(err)
	}
	tails := []uint64{0, 8, MinRingSize, 1 << 63, ^uint64(0)}
	for _, tail := range tails {
		for d := uint64(0); d < 2*MinRingSize; d++ {
			store64(m[0].area.Bytes, hdrTail, tail)
			store64(m[0].area.Bytes, hdrHead, tail+d)
			if _, err := code.run(make([]byte, RegsSize)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.Equal(after.Bytes, make([]byte, len(after.Bytes))) {
		t.Error("written behind the ring")
	}
}

type infoCase struct {
	name, src string
	want      bool
}

// wantInfo compiles programs and wants them to be so, or not.
func wantInfo(t *testing.T, l Layout, is func(*Info) bool, cases []infoCase) {
	maps := testMaps(t, newNative(t), arraySpec, hashSpec, MapSpec{Name: "ring", Kind: RingBuf, MaxEntries: MinRingSize})
	for _, tt := range cases {
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, tt.src), Maps: maps})
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if _, info, err := Compile(p, l); err != nil || is(info) != tt.want {
			t.Errorf("%s: %+v, %v, want %v", tt.name, info, err, tt.want)
		}
	}
}

// TestAligned: which programs make no access to memory that is not aligned.
func TestAligned(t *testing.T) {
	wantInfo(t, Layout{Fixups: true}, func(i *Info) bool { return i.Aligned }, []infoCase{
		{"nothing", "mov r0, 0\nexit", true},
		{"count", countProgram, true},
		{"filter", filterProgram, true},
		{"a word of the context", "ldxw r0, [r1+12]\nexit", true},
		{"a word that is not aligned", "ldxw r0, [r1+14]\nexit", false},
		{"two words as one", "ldxdw r0, [r1+12]\nexit", false},
		{"bytes anywhere", "ldxb r2, [r1+3]\nldval r3, 0, 0\nadd r3, r2\nldxb r0, [r3+0]\nexit", true},
		{"words anywhere", "ldxb r2, [r1+3]\nldval r3, 0, 0\nadd r3, r2\nldxh r0, [r3+0]\nexit", false},
		{"words at even places", "ldxb r2, [r1+3]\nlsh r2, 1\nldval r3, 0, 0\nadd r3, r2\nldxh r0, [r3+0]\nexit", true},
		{"a wild address", "ldxdw r2, [r1+0]\nldxw r0, [r2+0]\nexit", false},
		{"a byte at a wild address", "ldxdw r2, [r1+0]\nldxb r0, [r2+0]\nexit", true},
		{"key that is not aligned", "stw [r10-8], 1\nstw [r10-4], 0\nmov r2, r10\nadd r2, -6\nldmap r1, 0\ncall 1\nmov r0, 0\nexit", false},
		{"search in a hash", "stw [r10-4], 1\nmov r2, r10\nadd r2, -4\nldmap r1, 1\ncall 1\nmov r0, 0\nexit", false},
		{"read of guest memory", "mov r1, r10\nadd r1, -8\nmov r2, 8\nmov r3, 0\ncall 113\nmov r0, 0\nexit", false},
		{"local call", "call local f\nexit\nf:\nmov r0, 0\nexit", false},
	})
}

// TestSmallOrNot: which programs are small, and what a block counts of them.
func TestSmallOrNot(t *testing.T) {
	n := newNative(t)
	wantInfo(t, Layout{}, func(i *Info) bool { return i.Small }, []infoCase{
		{"nothing", "mov r0, 0\nexit", true},
		{"count", countProgram, true},
		{"filter", filterProgram, true},
		{"unread stack", "stxdw [r10-8], r1\nexit", true},
		{"stack not written", "ldxdw r0, [r10-8]\nexit", false},
		{"half written", "stw [r10-8], 1\nldxdw r0, [r10-8]\nexit", false},
		{"written on one path", "ldxdw r2, [r1+0]\njeq r2, 0, f\nstdw [r10-8], 1\nf:\nldxdw r0, [r10-8]\nexit", false},
		{"written on both", "ldxdw r2, [r1+0]\njeq r2, 0, f\nstdw [r10-8], 1\nja g\nf:\nstdw [r10-8], 2\ng:\nldxdw r0, [r10-8]\nexit", true},
		{"loop", "mov r2, 3\na:\nsub r2, 1\njne r2, 0, a\nexit", true},
		{"loop without end", "a:\nadd r2, 1\njne r2, 0, a\nexit", false},
		{"loop that is too long", "a:\nadd r2, 1\njlt r2, 0x1000000, a\nexit", false},
		{"local call", "call local f\nexit\nf:\nexit", false},
		{"hash", "stw [r10-4], 1\nmov r2, r10\nadd r2, -4\nldmap r1, 1\ncall 1\nexit", false},
		{"spilled address", "mov r6, r1\nstxdw [r10-8], r6\nldxdw r7, [r10-8]\nldxdw r0, [r7+8]\nexit", true},
		{"spilled and overwritten", "mov r6, r1\nstxdw [r10-8], r6\nstb [r10-3], 0\nldxdw r7, [r10-8]\nldxdw r0, [r7+8]\nexit", false},
		{"value not checked", "ldxw r2, [r1+0]\nstxw [r10-4], r2\nmov r2, r10\nadd r2, -4\nldmap r1, 0\ncall 1\nldxb r0, [r0+0]\nexit", false},
		{"value checked", "ldxw r2, [r1+0]\nstxw [r10-4], r2\nmov r2, r10\nadd r2, -4\nldmap r1, 0\ncall 1\njeq r0, 0, f\nldxb r0, [r0+0]\nf:\nexit", true},
		{"record kept", "mov r2, 8\nmov r3, 0\nldmap r1, 2\ncall 131\nmov r0, 0\nexit", false},
		{"record on one path", "mov r2, 8\nmov r3, 0\nldmap r1, 2\ncall 131\njeq r0, 0, f\nmov r1, r0\ncall 133\nf:\nexit", true},
		{"context written", "stdw [r1+0], 1\nexit", false},
		{"context behind its end", "ldxdw r0, [r1+164]\nexit", false},
		{"own pointer", "lddw r1, 0x1000000000000\nldxdw r0, [r1+0]\nexit", false},
	})
	// What a run in the middle of another one could spoil claims the block.
	value := "ldval r6, 0, 0\n"
	for src, want := range map[string]bool{
		countProgram: true, recordProgram: true, outputProgram: true,
		value + "ldxdw r1, [r6+8]\nadd r1, 5\nstxdw [r6+8], r1\nmov r0, 3\nexit":                   true,
		value + "ldxw r1, [r6+4]\nadd32 r1, 5\nstxw [r6+4], r1\nmov r0, 3\nexit":                   true,
		value + "mov r1, 1\nlock add [r6+0], r1\nmov r0, 3\nexit":                                  true,
		value + "ldxdw r0, [r6+8]\nexit":                                                           true,
		value + "ldxdw r1, [r6+8]\nadd r1, 5\nstxdw [r6+0], r1\nexit":                              false,
		value + "ldxdw r0, [r6+8]\nadd r0, 5\nstxdw [r6+8], r0\nexit":                              false, // the sum is needed
		value + "ldxdw r1, [r6+8]\nadd r1, r1\nstxdw [r6+8], r1\nmov r0, 0\nexit":                  false,
		value + "ldxdw r1, [r6+8]\njeq r1, 5, f\nadd r1, 1\nf:\nstxdw [r6+8], r1\nmov r0, 0\nexit": false,
		value + "stdw [r6+0], 1\nmov r0, 3\nexit":                                                  false,
	} {
		spec := arraySpec
		if src == recordProgram || src == outputProgram {
			spec = MapSpec{Name: "ring", Kind: RingBuf, MaxEntries: MinRingSize}
		}
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, src), Maps: testMaps(t, n, spec)})
		if err != nil {
			t.Fatal(err)
		}
		code, err := n.load(p, Layout{}, BlockConfig{}, RegsSize)
		if err != nil || !code.info.Small || code.info.Reentrant != want {
			t.Errorf("%q: small and reentrant is not %v: %v", src, want, err)
			continue
		}
		if want {
			continue
		}
		ctx := make([]byte, RegsSize)
		for i := range 3 {
			code.block.Bytes[blkBusy] = byte(i & 1)
			if _, err := code.run(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if runs, failed, missed, _ := BlockStats(code.block); runs != 2 || failed != 0 || missed != 1 || code.block.Bytes[blkBusy] != 0 {
			t.Errorf("%q: %d runs, %d failed, %d missed, want 2, 0, 1", src, runs, failed, missed)
		}
	}
	p, _ := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, filterProgram)})
	for _, full := range []bool{false, true} {
		code, err := n.load(p, Layout{Full: full}, BlockConfig{}, RegsSize)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(10) {
			if _, err := code.run(regsContext(x86.Regs{RDX: 95 + i})); err != nil {
				t.Fatal(err)
			}
		}
		if runs, _, _, _ := BlockStats(code.block); runs != 10 || BlockAnswers(code.block) != [4]uint64{6, 4} {
			t.Errorf("full %v: %d runs, answers %d, want 10, 6 and 4", full, runs, BlockAnswers(code.block))
		}
	}
	// The latest fault stays, whatever runs after it.
	wild, _ := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, "ldxdw r2, [r1+96]\nldxdw r0, [r2+0]\nexit")})
	code, err := n.load(wild, Layout{}, BlockConfig{}, RegsSize)
	if err != nil {
		t.Fatal(err)
	}
	for i, rdx := range []uint64{7, segPointer(segContext, 0, 0), segPointer(segContext, 0, 8)} {
		if _, err := code.run(regsContext(x86.Regs{RDX: rdx})); (err != nil) != (i == 0) {
			t.Errorf("run %d: %v", i, err)
		}
	}
	if runs, failed, _, last := BlockStats(code.block); runs != 3 || failed != 1 || last != (Fault{Code: FaultLoad, PC: 1, Addr: 7}) {
		t.Errorf("%d runs, %d failed, %v", runs, failed, &last)
	}
	// A block that has been retired runs nothing.
	for _, full := range []bool{false, true} {
		code, err := n.load(p, Layout{Full: full, Shared: full}, BlockConfig{}, RegsSize)
		if err != nil {
			t.Fatal(err)
		}
		run := func(want uint64) {
			t.Helper()
			if r0, err := code.run(regsContext(x86.Regs{RDX: 101})); r0 != want || err != nil {
				t.Errorf("full %v: %d, %v, want %d", full, r0, err, want)
			}
		}
		run(1)
		if !code.info.Retire(code.block) {
			t.Errorf("full %v: a run is under way", full)
		}
		run(0)
		if runs, failed, missed, _ := BlockStats(code.block); runs != 1 || failed != 0 || missed != 1 {
			t.Errorf("full %v: %d runs, %d failed, %d missed, want 1, 0, 1", full, runs, failed, missed)
		}
		code.p.InitBlock(code.block, BlockConfig{})
		begun := blkRuns // as seen in the middle of a run
		if full {
			begun = blkBusy
		}
		code.block.Bytes[begun] = 1
		if code.info.Retire(code.block) {
			t.Errorf("full %v: no run is under way", full)
		}
	}
	raw, _ := New(Spec{Kind: Raw, Insns: mustAssemble(t, "mov r0, r2\nexit")})
	if _, info, err := Compile(raw, Layout{}); err != nil || info.Small {
		t.Errorf("a raw program is small: %v", err)
	}
}
