//go:build linux && amd64

package bpf_test

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/dev/bpftest"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// allowed are the opcodes that compiled code may hold, by map. Every host that
// the project was measured on executes them at CPL 0, emulated or not: nothing
// of SSE or later, no string instructions, nothing privileged.
var allowed = map[x86.Map][]string{
	x86.Map0: {
		"00-3d arithmetic", "50-5f push, pop", "63 movsxd", "69-6b imul", "80-83 arithmetic", "84-8b test, xchg, mov", "8d lea",
		"99 cqo", "a8-a9 test", "b8-bf mov", "c1 shift", "c3 ret", "c6-c7 mov", "d3 shift", "e8-e9 call, jmp", "f7 test, neg, mul, div",
	},
	x86.Map0F: {
		"31 rdtsc", "80-8f jcc", "ac shrd", "af imul", "b1 cmpxchg", "b6-b7 movzx", "ba bts", "be-bf movsx", "c1 xadd", "c8-cf bswap",
	},
}

func isAllowed(i *x86.Inst) bool {
	if m, ok := i.Mem(); ok && i.Segment == x86.SegGS && m.Base == x86.NoReg && m.Index == x86.NoReg && i.Opcode == 0x8b {
		return true // the current task of the guest's kernel
	}
	if i.Map == x86.Map0 && i.Opcode == 0x90 && i.Has(x86.PrefixRep) && i.Len == 2 {
		return true // pause
	}
	if i.Enc != x86.Legacy || i.Segment != x86.SegNone || i.Has(x86.PrefixRep) || i.Has(x86.PrefixRepNE) {
		return false
	}
	for _, s := range allowed[i.Map] {
		var lo, hi uint8
		if n, _ := fmt.Sscanf(s, "%02x-%02x ", &lo, &hi); n < 2 {
			hi = lo
		}
		if i.Opcode >= lo && i.Opcode <= hi {
			return true
		}
	}
	return false
}

// randomMaps makes the maps of random programs in the memory of n.
func randomMaps(t *testing.T, n bpf.Runner) (maps []*bpf.Map) {
	t.Helper()
	n.Reset()
	for _, s := range bpftest.Maps() {
		m, err := bpf.NewMap(s, 2, n)
		if err != nil {
			t.Fatal(err)
		}
		maps = append(maps, m)
	}
	return maps
}

// TestInstructions decodes whole compiled programs, with all their helpers, and
// wants only allowed instructions.
func TestInstructions(t *testing.T) {
	n := bpf.NewNative(t)
	l := bpf.Layout{Task: &bpf.TaskProfile{TID: 8, TGID: 12, Comm: 400}, Fixups: true, Shared: true, Frames: &bpf.Frames{
		Text: []bpf.Range{{Start: 1 << 40, End: 2 << 40}, {Start: 5, End: 6}}, Longest: 1 << 20, Trampolines: bpf.Trampolines{Magic: 1 << 60, Jump: 10, Size: 16, Near: bpf.Range{Start: 1, End: 9}},
		Calls: []bpf.FrameAt{{PC: 1<<40 + 5}, {PC: 1<<40 + 9, FrameRule: bpf.FrameRule{Outer: true}}, {PC: 1<<40 + 20, FrameRule: bpf.FrameRule{CFA: 1024, RBP: -80}}},
	}}
	compiledSome := 0
	check := func(name string, p *bpf.Program) {
		t.Helper()
		l := l
		if compiledSome&1 != 0 {
			l.Task = &bpf.TaskProfile{TID: 8, TGID: 12, Comm: 400, Stack: &bpf.StackProfile{Mask: ^uint64(4095), Magic: 1}}
		}
		code, info, err := bpf.Compile(p, l)
		if err != nil {
			return
		}
		compiledSome++
		starts := map[int]bool{}
		for at := 0; at < len(code); {
			i, err := x86.Decode(code[at:])
			if err != nil {
				t.Fatalf("%s: offset %#x: % x: %v", name, at, code[at:min(at+15, len(code))], err)
			}
			if !isAllowed(&i) {
				t.Errorf("%s: offset %#x: % x is not allowed", name, at, i.Bytes())
			}
			starts[at] = true
			at += int(i.Len)
		}
		for _, f := range info.Fixups {
			if !starts[f.Fault] || !starts[f.Resume] {
				t.Errorf("%s: fixup %+v is not at instructions", name, f)
			}
		}
	}
	for seed := range uint64(300) {
		maps := randomMaps(t, n)
		if p, err := bpf.New(bpf.Spec{Kind: bpf.Kind(seed % 3), Insns: bpftest.Program(bpftest.Bytes(seed, 400), false), Maps: maps}); err == nil {
			check(fmt.Sprint("seed ", seed), p)
		}
		if p, err := bpf.New(bpf.Spec{Kind: bpf.Kprobe, Insns: bpftest.Program(bpftest.Bytes(seed, 100), true), Maps: maps}); err == nil {
			check(fmt.Sprint("small, seed ", seed), p)
		}
	}
	for _, file := range []string{"count.o", "latency.o", "record.o", "count-v1.o", "stacks.o"} {
		for _, p := range bpf.LoadTestObject(t, file, n).Programs {
			check(file, p.Program)
		}
	}
	if compiledSome < 100 {
		t.Errorf("only %d programs were compiled", compiledSome)
	}
}

// TestRandom: the numbers of get_prandom_u32 in machine code have 32 random bits, and those of two blocks differ.
func TestRandom(t *testing.T) {
	n := bpf.NewNative(t)
	p, err := bpf.New(bpf.Spec{Kind: bpf.Kprobe, Insns: asm.Instructions{asm.FnGetPrandomU32.Call(), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	seen, ones := map[uint64]bool{}, [64]int{}
	const runs = 4000
	for range 2 {
		code, err := bpf.LoadOn(n, p, bpf.Layout{Fixups: true, NoGuest: true}, bpf.BlockConfig{}, bpf.RegsSize)
		if err != nil {
			t.Fatal(err)
		}
		for range runs {
			v, err := code.Run(make([]byte, bpf.RegsSize))
			if err != nil {
				t.Fatal(err)
			}
			seen[v] = true
			for bit := range ones {
				ones[bit] += int(v >> bit & 1)
			}
		}
	}
	if len(seen) < 2*runs-10 {
		t.Errorf("%d numbers of %d are different", len(seen), 2*runs)
	}
	for bit, n := range ones {
		if bit < 32 && (n < runs*9/10 || n > runs*11/10) || bit >= 32 && n != 0 {
			t.Errorf("bit %d was set %d times of %d", bit, n, 2*runs)
		}
	}
}

// TestMachineStack measures how deep programs go into the stack of what they
// interrupt, and wants no more than Info says, and no Info of more than a page's
// quarter.
func TestMachineStack(t *testing.T) {
	n := bpf.NewNative(t)
	for seed := range uint64(800) {
		maps := randomMaps(t, n)
		p, err := bpf.New(bpf.Spec{Kind: bpf.Kprobe, Insns: bpftest.Program(bpftest.Bytes(seed, 600), seed%3 == 0), Maps: maps, Budget: 1000})
		if err != nil {
			continue
		}
		code, err := bpf.LoadOn(n, p, bpf.Layout{Fixups: true, NoGuest: true}, bpf.BlockConfig{}, bpf.RegsSize)
		if err != nil {
			continue
		}
		stack := n.Stack()
		for i := range stack {
			stack[i] = 0xa5
		}
		_, _ = code.Run(make([]byte, bpf.RegsSize))
		untouched := 0
		for untouched < len(stack) && stack[untouched] == 0xa5 {
			untouched++
		}
		if used := len(stack) - untouched; used > code.Info.MachineStack || code.Info.MachineStack > 1024 {
			t.Fatalf("seed %d: used %d bytes of stack, Info says %d", seed, used, code.Info.MachineStack)
		}
	}
}
