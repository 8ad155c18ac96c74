//go:build linux && amd64

package bpf

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// TestCompiledTyped runs generated programs with words of arguments and results in
// both back ends: the interpreter gets them by the function's type, compiled code
// finds them in the registers.
func TestCompiledTyped(t *testing.T) {
	n := newNative(t)
	r := rand.New(rand.NewPCG(7, 11))
	ops := []string{"add", "sub", "xor", "mul", "or", "and"}
	for i := range 600 {
		kind, args := Fentry, 1+r.IntN(6)
		words := args
		if i%2 == 1 {
			kind, words = Fexit, args+1
		}
		var src strings.Builder
		src.WriteString("mov r6, r1\nmov r0, 1\n")
		for range 1 + r.IntN(8) {
			fmt.Fprintf(&src, "ldxdw r%d, [r6+%d]\n", 7, 8*r.IntN(words))
			if r.IntN(3) == 0 {
				src.WriteString("jsgt r7, 0, +1\nadd r0, 3\n")
			}
			fmt.Fprintf(&src, "%s r0, r7\n", ops[r.IntN(len(ops))])
			if r.IntN(4) == 0 {
				src.WriteString("mov r8, r0\ncall 185\nadd r0, r8\n")
			}
		}
		src.WriteString("exit")
		p, err := New(Spec{Kind: kind, Insns: mustAssemble(t, src.String()), Args: args, Returns: kind == Fexit, Follows: true})
		if err != nil {
			t.Fatalf("%v\n%s", err, &src)
		}
		regs := x86.Regs{RDI: r.Uint64(), RSI: r.Uint64(), RDX: r.Uint64(), RCX: r.Uint64(), R8: r.Uint64(), R9: r.Uint64(), RAX: r.Uint64()}
		entry := x86.Regs{RDI: r.Uint64(), RSI: r.Uint64(), RDX: r.Uint64(), RCX: r.Uint64(), R8: r.Uint64(), R9: r.Uint64()}
		var typed, plain [ReturnSize]byte
		PutRegs(plain[:], &regs, 0, 0)
		PutEntry(plain[RegsSize:], 5, &entry)
		want, err := NewVM(p, 0).Run(p.PutContext(typed[:], NoEnv{}, &regs, 0, 0, plain[RegsSize:]), NoEnv{})
		if err != nil {
			t.Fatalf("%v\n%s", err, &src)
		}
		for _, full := range []bool{false, true} {
			n.Reset()
			code, err := n.load(p, Layout{Full: full}, BlockConfig{}, ReturnSize)
			if err != nil {
				t.Fatalf("%v\n%s", err, &src)
			}
			if got, err := code.run(plain[:]); got != want || err != nil {
				t.Fatalf("with all checks %v: %#x, %v, want %#x\n%s", full, got, err, want, &src)
			}
		}
	}
}

// TestTypedOnHost: what the guest cannot do with a typed context, and what it can.
func TestTypedOnHost(t *testing.T) {
	for src, want := range map[string]string{
		"ldxdw r0, [r1+8]\nexit":                                          "",
		"ldxdw r0, [r1+8]\nldxdw r0, [r0+16]\nexit":                       "follows addresses",
		"ldxw r0, [r1+8]\nexit":                                           "other than by words",
		"ldxdw r0, [r1+4]\nexit":                                          "other than by words",
		"ldxdw r2, [r1+0]\nand r2, 8\nadd r1, r2\nldxdw r0, [r1+0]\nexit": "other than by words",
		"stxdw [r10-8], r1\nldxdw r2, [r10-8]\nldxdw r0, [r2+0]\nexit":    "",
		"mov r2, 0\nmov r3, r10\nadd r3, -8\ncall 183\nmov r0, 0\nexit":   "by their number",
		"call 35\nexit": "",
	} {
		p, err := New(Spec{Kind: Fentry, Insns: mustAssemble(t, src), Args: 2, Follows: true})
		if err != nil {
			t.Fatal(err)
		}
		if why := p.hostOnly(); (why == "") != (want == "") || !strings.Contains(why, want) {
			t.Errorf("%q: %q, want something about %q", src, why, want)
		}
	}
	if _, err := New(Spec{Kind: Fentry, Insns: mustAssemble(t, "mov r0, 0\nexit"), Args: 7}); err == nil {
		t.Error("seven words of arguments")
	}
}

// TestCompiledTaskAddress: the current task's address is the same in both back ends.
func TestCompiledTaskAddress(t *testing.T) {
	n := newNative(t)
	task, err := lowMemory(t)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint64(task.Bytes, 0xffff888000001000)
	for _, helper := range []string{"35", "158"} {
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, "call "+helper+"\nexit")})
		if err != nil {
			t.Fatal(err)
		}
		code, err := n.load(p, Layout{Task: &TaskProfile{Current: int32(task.Addr)}}, BlockConfig{}, RegsSize)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := code.run(make([]byte, RegsSize)); got != 0xffff888000001000 || err != nil {
			t.Errorf("helper %s: %#x, %v", helper, got, err)
		}
		if _, _, err := Compile(p, Layout{}); err == nil || !strings.Contains(err.Error(), "guest profile") {
			t.Errorf("without a profile: %v", err)
		}
	}
}
