//go:build linux && amd64

package bpf

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// TestBounded: which programs do not count the budget at run time, because no run can
// use it up. Programs that could use it up do use it up; all have the same results as
// in the interpreter.
func TestBounded(t *testing.T) {
	// A loop reads words of a value, by what scale makes of the number in r2.
	index := func(start, scale, step string) string {
		return start + "\nldval r1, 0, 0\nagain:\nmov r3, r2\n" + scale + "\nadd r3, r1\nldxdw r4, [r3+0]\nadd r0, r4\n" + step + "\nja again\nout:\nexit"
	}
	unknown := "ldxdw r2, [r1+112]"
	// Two loops that do nothing, the second one of cost slots: it is entered as often
	// as the first one goes round, as far as is known.
	turns := func(first, second, cost int) string {
		by := func(n int) string {
			if int(int32(n)) == n {
				return itoa(int64(n))
			}
			return "r3"
		}
		return fmt.Sprintf("mov r1, 0\nlddw r3, %d\na:\nadd r1, 1\njlt r1, %s, a\n"+
			"mov r2, -1\nlddw r3, %d\nb:\n%sadd r2, 1\njslt r2, %s, b\nexit", first, by(first), second, strings.Repeat("mov r0, 0\n", cost-2), by(second))
	}
	for _, tt := range []struct {
		name, src string
		want      bool
		fault     FaultCode // of a run with the default budget
		budget    int64
	}{
		{"index", index("mov r2, 0", "", "add r2, 1"), true, FaultLoad, 0},
		{"index that is shifted", index("mov r2, 0", "lsh r3, 3", "add r2, 1"), true, FaultLoad, 0},
		{"index that is multiplied", index("mov r2, 0", "mul r3, 24", "add r2, 1"), true, FaultLoad, 0},
		{"index of a field", index("mov r2, 0", "mul r3, 24\nadd r3, 8", "add r2, 1"), true, FaultLoad, 0},
		{"next index", index("mov r2, 0", "add r3, 1\nlsh r3, 3", "add r2, 2"), true, FaultLoad, 0},
		{"index from anywhere", index(unknown, "lsh r3, 3", "add r2, 1"), false, FaultLoad, 0},
		{"index that stands still", index("mov r2, 0", "lsh r3, 3", "add r2, 0"), false, FaultBudget, 0},
		{"shifted out", index("mov r2, 0", "lsh r3, 40", "add r2, 0x1000000"), false, FaultBudget, 0},
		{"divided by 3, modulo 2^64", index("lddw r5, 0xaaaaaaaaaaaaaaab\nmov r2, 0", "mul r3, r5\njgt r3, 8000, out", "add r2, 3"), false, NoFault, 0},
		{"divided by 3, modulo 2^32", index("mov r2, 0", "mul32 r3, 0xaaaaaaab\njgt r3, 8000, out", "add r2, 3"), false, NoFault, 0},
		{"multiplied by nothing", index("mov r2, 0", "mul r3, 0", "add r2, 1"), false, FaultBudget, 0},
		{"a half that is shifted", index("mov r2, 0", "lsh32 r3, 3", "add r2, 0x20000000"), false, FaultBudget, 0},
		{"shifted before it is changed", index("mov r5, 0\nmov r2, 0", "mov r3, r2\nlsh r3, 3\nmov r2, r5", "add r2, 1"), false, FaultBudget, 0},
		{"two loops", turns(100, 100, 2), true, NoFault, 0},
		{"turns of 2^64 slots", turns(1<<19, 1<<31, 1<<14), false, FaultBudget, 0},
		{"2^64 turns", turns(1<<32, 1<<32, 2), false, NoFault, 1 << 40},
	} {
		n := newNative(t)
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, tt.src), Maps: testMaps(t, n, MapSpec{Name: "value", Kind: Array, KeySize: 4, ValueSize: 8192, MaxEntries: 1}), Budget: tt.budget})
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if got := !newPlan(p, Layout{}).charges; got != tt.want {
			t.Errorf("%s: bounded %v, want %v", tt.name, got, tt.want)
		}
		if t.Failed() || tt.budget != 0 {
			continue
		}
		code, err := n.load(p, Layout{}, BlockConfig{}, RegsSize)
		if err != nil {
			t.Fatal(err)
		}
		ctx := regsContext(x86.Regs{RDI: 5})
		want, wantErr := NewVM(p, 0).Run(ctx, NoEnv{})
		got, err := code.run(ctx)
		f, host := new(Fault), new(Fault)
		errors.As(err, &f)
		if errors.As(wantErr, &host); f.Code != tt.fault || *f != *host || got != want {
			t.Errorf("%s: %d, %v, interpreter %d, %v", tt.name, got, err, want, wantErr)
		}
	}
}
