package bpf

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// GiveUp has the verifier give up on every program until the test ends.
func GiveUp(t testing.TB) {
	old := workFloor
	workFloor = -1 << 40
	t.Cleanup(func() { workFloor = old })
}

// longProgram has a body as often as it fits into n slots, with the number of the repetition in place of each @.
func longProgram(n, slots int, begin, body, end string) string {
	var b strings.Builder
	b.WriteString("ldxdw r6, [r1+0]\nldxdw r7, [r1+8]\nmov r0, 0\nmov r8, 0\nmov r9, 0\n" + begin)
	for i := 0; i < (n-20)/slots; i++ {
		b.WriteString(strings.ReplaceAll(body, "@", fmt.Sprint(i)))
	}
	return b.String() + end + "exit\n"
}

// TestVerifierWork: what the verifier does about long programs of each shape is bounded, in instructions that it follows
// and in bytes that it allocates, as is what it tells.
func TestVerifierWork(t *testing.T) {
	const n = 60_000
	nested := longProgram(18_000, 2, "", "l@:\nadd r8, 1\n", "")
	nested = strings.TrimSuffix(nested, "exit\n")
	for i := (18_000-20)/2 - 1; i >= 0; i-- {
		nested += fmt.Sprintf("jlt r8, %d, l%d\nadd r8, 1\n", i, i)
	}
	for _, c := range []struct {
		name, src string
		work      int // for each slot
		gaveUp    bool
		warnings  int
	}{
		{"straight", longProgram(n, 1, "", "add r8, r6\n", ""), 2, false, 0},
		{"branches", longProgram(n, 2, "", "jeq r6, @, l@\nadd r8, 1\nl@:\n", ""), 4, false, 0},
		{"joins", longProgram(n, 1, "", "jset r6, 1, l@\nl@:\n", ""), 6, false, 0},
		{"spills", longProgram(n, 5, "", "stxdw [r10-8], r6\njgt r6, @, l@\nldxdw r8, [r10-8]\nadd r8, r7\nstxdw [r10-16], r8\nl@:\n", ""), 3, false, 0},
		{"loops", longProgram(n, 2, "", "l@:\nadd r8, 1\njlt r8, @, l@\n", ""), 12, false, 0},
		{"loops that join", longProgram(n, 3, "", "l@:\nadd r8, r6\nadd r9, 1\njlt r8, r9, l@\n", ""), 24, false, 0},
		{"nested loops", nested + "exit\n", 24, false, 0},
		{"one loop", longProgram(30_000, 2, "top:\n", "jset r6, 1, l@\nadd r8, 1\nl@:\n", "add r9, 1\njlt r9, 100, top\n"), 48, false, 0},
		{"one loop of all", longProgram(30_000, 1, "top:\n", "jset r6, 1, l@\nl@:\n", "add r9, 1\njlt r9, 100, top\n"), 24, true, 1},
		{"mistakes", longProgram(n, 1, "", "add r8, r3\n", ""), 2, false, maxWarnings},
	} {
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, c.src)})
		if err != nil {
			t.Fatal(c.name, err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		a := verify(p, false)
		runtime.ReadMemStats(&after)
		perSlot, bytes := float64(a.work)/float64(len(p.ops)), (after.TotalAlloc-before.TotalAlloc)/uint64(len(p.ops))
		t.Logf("%s: %.1f instructions of work and %d bytes for each", c.name, perSlot, bytes)
		if int(perSlot) > c.work || bytes > 2500 || a.gaveUp != c.gaveUp {
			t.Errorf("%s: %.1f instructions of work for each, want at most %d; %d bytes; given up: %v", c.name, perSlot, c.work, bytes, a.gaveUp)
		}
		w := p.Warnings()
		if len(w) != c.warnings {
			t.Errorf("%s: %d warnings, want %d", c.name, len(w), c.warnings)
		}
		if c.name == "mistakes" && w[len(w)-1].What != fmt.Sprintf("r3 is read and may not have been written (%d more warnings are not shown)", n-20-maxWarnings) {
			t.Error(w[len(w)-1].What)
		}
		if c.gaveUp && w[0].What != "the program has more paths than the verifier follows: mistakes in it are not found" {
			t.Error(w[0].What)
		}
	}
}
