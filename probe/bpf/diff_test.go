//go:build linux && amd64

package bpf_test

import (
	"testing"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/internal/dev/bpftest"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// FuzzBackends runs generated programs in the interpreter and compiled, and
// wants the same of both.
func FuzzBackends(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(bpftest.Bytes(seed, 300), byte(seed))
		f.Add(bpftest.Bytes(seed, 300), byte(8+seed))
	}
	w := bpftest.Twin{Runner: bpf.NewNative(f)}
	f.Fuzz(func(t *testing.T, src []byte, kind byte) {
		if err := w.Compare(bpftest.Program(src[:min(len(src), 2000)], kind&8 != 0), bpf.Kind(kind&7%3), 3); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBackendsAgree is the fuzzer with fixed random programs.
func TestBackendsAgree(t *testing.T) {
	w := bpftest.Twin{Runner: bpf.NewNative(t)}
	const n = 3000 // FuzzBackends continues from here
	for seed := range uint64(n) {
		if err := w.CompareSeed(seed, 3); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("2 times %d programs: %d small, %d refused, %d host only, %d runs, ended %v", n, w.Small, w.Refused, w.HostOnly, w.Runs, w.Ended)
	if w.Small < n/4 {
		t.Errorf("only %d of %d small programs were compiled as such", w.Small, n)
	}
	if w.Runs < 3*n || w.Ended[bpf.NoFault.String()] < 3*w.Runs/10 {
		t.Errorf("%d programs were refused and %d host only; %d of %d runs came to their end: the generator tests too little",
			w.Refused, w.HostOnly, w.Ended[bpf.NoFault.String()], w.Runs)
	}
}

// TestBackendsAgreeAborted is the same of programs that the verifier gives up on.
func TestBackendsAgreeAborted(t *testing.T) {
	bpf.GiveUp(t)
	w := bpftest.Twin{Runner: bpf.NewNative(t)}
	for seed := range uint64(500) {
		if err := w.CompareSeed(seed, 3); err != nil {
			t.Fatal(err)
		}
	}
	if w.Runs < 1500 || w.Ended[bpf.NoFault.String()] < w.Runs/3 {
		t.Errorf("%d programs were refused and %d host only, of %d runs ended %v", w.Refused, w.HostOnly, w.Runs, w.Ended)
	}
}

// TestLookupPerCPU writes and reads the values of each vCPU, and of one that there is not,
// in both ways.
func TestLookupPerCPU(t *testing.T) {
	w := bpftest.Twin{Runner: bpf.NewNative(t)}
	call := func(h bpf.Helper) asm.Instruction { return asm.BuiltinFunc(h).Call() }
	for i, m := range bpftest.Maps() {
		prog := asm.Instructions{asm.Mov.Imm(asm.R6, 0), asm.StoreMem(asm.R10, -8, asm.R6, asm.DWord), asm.Mov.Imm(asm.R1, 2), asm.StoreMem(asm.R10, -16, asm.R1, asm.DWord)}
		key := asm.Instructions{asm.LoadMapPtr(asm.R1, i), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -16)}
		prog = append(append(prog, key...), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -100), asm.Mov.Imm(asm.R4, 0), call(bpf.HelperMapUpdate))
		for n, cpu := range []uint64{0, 1, 2, 1<<32 - 1, 1 << 32} {
			label := string(rune('a' + n))
			prog = append(append(prog, key...), asm.LoadImm(asm.R3, int64(cpu), asm.DWord), call(bpf.HelperLookupPerCPU), asm.LSh.Imm(asm.R6, 1), asm.JEq.Imm(asm.R0, 0, label),
				asm.Mov.Imm(asm.R1, int32(n+1)), asm.StoreXAdd(asm.R0, asm.R1, asm.Word), asm.Add.Imm(asm.R6, 1), asm.LSh.Imm(asm.R6, 1).WithSymbol(label))
		}
		prog = append(prog, asm.Mov.Reg(asm.R0, asm.R6), asm.Return())
		before := w.Runs
		if err := w.Compare(prog, bpf.Kprobe, 3); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
		if perCPU := m.Kind == bpf.PerCPUArray || m.Kind == bpf.PerCPUHash; perCPU && (w.Runs != before+6 || w.Ended[bpf.NoFault.String()] != w.Runs-w.Ended[bpf.FaultMapArg.String()]) {
			t.Errorf("%s: %d runs, ended %v", m.Name, w.Runs-before, w.Ended)
		}
	}
}
