package probetest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

const (
	walkText   = guest.GVA(0xffff_ffff_8100_0000)
	walkCalls  = 2048      // bytes of code that return addresses point into
	walkRegion = 16 << 10  // of the task's stack that has generated contents, at its top
	walkStack  = stackBase // of the task
)

// walker is a guest with a probe at code that has any stack.
type walker struct {
	*env
	k       *Kernel
	f       *Fake
	probe   *probe.Kprobe
	start   guest.GVA // sets RSP and RBP to its third and fourth argument, and is hit
	calls   guest.GVA
	at      guest.GVA // of the vCPU's walk
	inGuest func() uint64
	blind   bool          // the host's handler does not look at the stack
	onHost  [][]guest.GVA // what the host found, for each hit that it has handled
}

// newWalker boots the guest. Its stage needs most addresses.
func newWalker(t *testing.T, most int, still bool) *walker {
	t.Helper()
	img, err := BuildImage(walkText, false,
		Func{"start", []byte("\x48\x89\xd4\x48\x89\xcd")},          // mov %rdx,%rsp; mov %rcx,%rbp
		Func{"probed", []byte("\x0f\x1f\x44\x00\x00\x90\x90\x90")}, // nopl
		Func{"leave", []byte("\xff\xe7\xcc\xcc")},                  // jmp *%rdi
		Func{"calls", slices.Repeat([]byte{0x90}, walkCalls)})
	if err != nil {
		t.Fatal(err)
	}
	w := &walker{k: &Kernel{Image: img, GS: true, Stacks: stackSize, Frames: map[guest.GVA]guest.FrameRule{}, Faults: &guest.FaultProfile{CountOff: 0x60, StackOff: 0x68}}}
	w.env = bootGS(t, FakeOptions{CPUs: 2, Image: img, Still: still, Symbols: func(*guest.Image) probe.Symbols { return w.k }})
	w.f = w.fake()
	w.start, w.calls = w.addr("start"), w.addr("calls")
	for i := range 2 {
		w.put(taskBase+guest.GVA(i*taskSize)+0x68, uint64(walkStack+guest.GVA(i*stackStride)))
	}
	stage, word := w.blocks()
	stage.Code, stage.Walk = []byte("\x48\xff\x06\xc3"), most // incq (%rsi); ret
	w.inGuest = func() uint64 { return word(0, 0) + word(1, 0) }
	if w.at, _, err = w.e.HoldWalks(w.addr("probed")); err != nil {
		t.Fatal(err)
	}
	w.probe = &probe.Kprobe{Symbol: "probed", Stage: stage, Pre: func(c *probe.Context) int {
		if w.blind {
			w.onHost = append(w.onHost, nil)
			return 0
		}
		pcs := make([]guest.GVA, most)
		n, _ := c.Stacks(pcs)
		w.onHost = append(w.onHost, pcs[:n])
		return 0
	}}
	w.register(w.probe)
	w.optimize()
	if i := w.info(w.probe); !i.InGuest {
		t.Fatalf("%+v", i)
	}
	t.Cleanup(func() {
		w.unregister(w.probe)
		w.e.ReleaseWalks()
	})
	return w
}

// put writes words to memory.
func (w *walker) put(at guest.GVA, words ...uint64) {
	for i, x := range words {
		w.f.put(at+guest.GVA(8*i), binary.LittleEndian.AppendUint64(nil, x))
	}
}

// hit has the code hit with that stack, and returns the addresses that a walk in the guest has found, or what the host has.
func (w *walker) hit(rsp, rbp uint64) (pcs []guest.GVA, inGuest bool) {
	w.Helper()
	before, host := w.inGuest(), len(w.onHost)
	const r8, r9 = 0x1122334455667788, 0x99aabbccddeeff00
	if _, err := w.f.Call(0, w.start, stopAddr, 1, rsp, rbp, r8, r9); err != nil {
		w.Fatal(err)
	}
	if r := w.f.cpus[0].regs; r.RDI != stopAddr || r.RSI != 1 || r.RDX != rsp || r.RSP != rsp || r.RCX != rbp || r.RBP != rbp || r.R8 != r8 || r.R9 != r9 || r.RAX|r.RBX|r.R10|r.R11|r.R12|r.R13|r.R14|r.R15 != 0 {
		w.Fatalf("registers changed: %+v", r)
	}
	if used := binary.LittleEndian.Uint64(w.bytes(w.at-8, 8)); used != 0 {
		w.Fatalf("the walk is in use: %d", used)
	}
	switch inGuest = w.inGuest() != before; {
	case inGuest == (len(w.onHost) != host):
		w.Fatalf("%d hits in the guest, %d on the host", w.inGuest()-before, len(w.onHost)-host)
	case !inGuest:
		return w.onHost[host], false
	}
	for n := int(binary.LittleEndian.Uint64(w.bytes(w.at, 8))); len(pcs) < n; {
		pcs = append(pcs, guest.GVA(binary.LittleEndian.Uint64(w.bytes(w.at+8+guest.GVA(8*len(pcs)), 8))))
	}
	return pcs, true
}

// unwind returns what the host's walk finds there.
func (w *walker) unwind(rsp, rbp uint64) (pcs []guest.GVA) {
	regs := probe.Regs{RIP: uint64(w.probe.Addr), RSP: rsp, RBP: rbp}
	frames, _ := w.e.Unwind(probe.State{Regs: &regs}, w.probe.Stage.Walk)
	for _, f := range frames {
		if f.User {
			break
		}
		pcs = append(pcs, guest.GVA(f.PC))
	}
	return pcs
}

// rule makes a rule of any kind, or without wild the rule of a small frame, or the end of a stack.
func rule(r *rand.Rand, wild bool) guest.FrameRule {
	words := func(n int) int32 { return 8 * int32(r.IntN(n)) }
	if !wild {
		return guest.FrameRule{CFA: 8 + words(6), Return: -8, RBP: -words(5), Outer: r.IntN(500) == 0}
	}
	x := guest.FrameRule{CFA: 8 + words(12), Return: -8}
	if r.IntN(3) == 0 {
		x.Base = guest.FrameRBP
		x.CFA = 16 + words(3)
	}
	if r.IntN(2) == 0 {
		x.RBP = -16 - words(4)
	}
	switch r.IntN(40) {
	case 0:
		x = guest.FrameRule{Outer: true}
	case 1, 2:
		x = guest.FrameRule{Base: x.Base, CFA: words(4), Trap: true, Full: true, Return: 128, RBP: 32}
	case 3:
		x = guest.FrameRule{CFA: words(4), Trap: true}
	case 4:
		x.Indirect, x.Inner = true, words(4)
	case 5:
		x.AtRBP = true
	case 6:
		x.Base = guest.FrameRegister(r.IntN(6))
	case 7:
		x.CFA -= words(40)
	case 8:
		x.CFA += int32(r.IntN(8))
	case 9:
		x.RBP += int32(r.IntN(8))
	case 10:
		x.RBP = 8*int32(r.IntN(400)) - 1600
	case 11:
		x.CFA <<= r.IntN(16)
	}
	return x
}

// word makes a word of a stack, at that address: without wild, a return address.
func (w *walker) word(r *rand.Rand, at guest.GVA, wild bool) uint64 {
	switch n := r.IntN(100); {
	case n < 60 || !wild:
		return uint64(w.calls) + 1 + uint64(r.IntN(walkCalls-2))
	case n < 85:
		return uint64(at) + 8*uint64(r.IntN(40))
	case n < 90:
		return uint64(walkStack+stackSize) - uint64(r.IntN(walkRegion))
	case n < 92:
		return uint64(walkStack+stackStride) + uint64(r.IntN(stackSize)) // another stack
	case n < 94:
		return uint64(kernelExec) + uint64(r.IntN(600))
	case n < 97:
		return uint64(r.IntN(4)) // a CS
	case n < 98:
		return uint64(walkText) + uint64(r.IntN(16)) - 4
	}
	return r.Uint64()
}

// TestWalks: a walk in the guest finds what the host's finds, for any stack and any rules; and everything else is left to the host.
func TestWalks(t *testing.T) {
	for _, most := range []int{1, 2, 6, 127, probe.MaxWalk} {
		t.Run(fmt.Sprint(most), func(t *testing.T) { testWalks(t, most) })
	}
}

func testWalks(t *testing.T, most int) {
	w, r := newWalker(t, most, false), rand.New(rand.NewPCG(1, uint64(most)))
	lengths := map[int]int{}
	for round := range 16 {
		wild := round%2 == 0
		clear(w.k.Frames)
		for i := range walkCalls {
			if !wild || r.IntN(50) > 0 {
				w.k.Frames[w.calls+guest.GVA(i)] = rule(r, wild)
			}
		}
		w.k.Frames[w.probe.Addr] = guest.FrameRule{CFA: 8, Return: -8}
		if err := w.e.TargetChanged(); err != nil {
			t.Fatal(err)
		}
		w.optimize()
		for range 50 {
			for at := walkStack + stackSize - walkRegion; at < walkStack+stackSize; at += 8 {
				w.put(at, w.word(r, at, wild))
			}
			for range 3 {
				rsp := uint64(walkStack) + stackSize - walkRegion + 8*uint64(r.IntN(walkRegion/8))
				if r.IntN(3) == 0 {
					rsp = uint64(walkStack) + stackSize - 8*uint64(1+r.IntN(64))
				}
				rbp := rsp + 8*uint64(r.IntN(30))
				if r.IntN(20) == 0 {
					rsp -= uint64(r.IntN(8))
				}
				if r.IntN(20) == 0 {
					rbp = r.Uint64()
				}
				for range 2 { // the host notes the rules that are missing
					got, inGuest := w.hit(rsp, rbp)
					if want := w.unwind(rsp, rbp); !slices.Equal(got, want) {
						t.Fatalf("round %d, RSP %#x, RBP %#x, in the guest %v:\ngot  %x\nwant %x", round, rsp, rbp, inGuest, got, want)
					}
					if inGuest {
						lengths[len(got)]++
					}
				}
			}
		}
	}
	for n := range min(most, 4) {
		if lengths[n+1] == 0 || lengths[most] < 50 {
			t.Errorf("%d walks of %d addresses in the guest, %d of %d", lengths[n+1], n+1, lengths[most], most)
		}
	}
}

// frames gives the guest rules by which each return address has a caller 16 bytes above, and a stack of n addresses: the probe's, those of
// the code from calls on, 8 bytes apart, and one after which there is no caller. It returns RSP.
func (w *walker) frames(n int) (rsp uint64, want []guest.GVA) {
	w.Helper()
	clear(w.k.Frames)
	w.k.Frames[w.probe.Addr] = guest.FrameRule{CFA: 8, Return: -8}
	at := walkStack + stackSize - walkRegion
	rsp, want = uint64(at), []guest.GVA{w.probe.Addr}
	for i := range n - 1 {
		pc := w.calls + guest.GVA(8*(i+1))
		w.k.Frames[pc-1] = guest.FrameRule{CFA: 16, Return: -8, Outer: i == n-2}
		if i > 0 {
			at += 16
		}
		w.put(at, uint64(pc), uint64(pc))
		want = append(want, pc)
	}
	if err := w.e.TargetChanged(); err != nil {
		w.Fatal(err)
	}
	w.optimize()
	return rsp, want
}

// expect has the code hit, and fails the test unless the stack is that and was walked there.
func (w *walker) expect(what string, rsp uint64, want []guest.GVA, inGuest bool) {
	w.Helper()
	got, there := w.hit(rsp, 0)
	if !slices.Equal(got, want) || there != inGuest {
		w.Errorf("%s: in the guest %v, want %v:\ngot  %v\nwant %v", what, there, inGuest, got, want)
	}
}

// TestWalkNotes: rules are noted for text of the kernel itself that stays as it is, until the text changes; and a vCPU whose walk is in use
// leaves the next one to the host.
func TestWalkNotes(t *testing.T) {
	w := newWalker(t, 20, false)
	rsp, want := w.frames(9)
	w.expect("nothing is noted", rsp, want, false)
	w.expect("all is noted", rsp, want, true)
	if err := w.e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	w.optimize()
	w.expect("the text may have changed", rsp, want, false)
	w.expect("all is noted again", rsp, want, true)

	if err := w.e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	w.optimize()
	w.blind = true
	w.expect("the handler does not look", rsp, nil, false)
	w.expect("but the engine", rsp, want, true)
	w.blind = false

	used := func(x uint64) { w.put(w.at-8, x) }
	used(1)
	before := len(w.onHost)
	if _, err := w.f.Call(0, w.start, stopAddr, 1, rsp, 0); err != nil || len(w.onHost) != before+1 {
		t.Errorf("in use: %d hits on the host, %v", len(w.onHost)-before, err)
	}
	if now := binary.LittleEndian.Uint64(w.bytes(w.at-8, 8)); now != 1 {
		t.Errorf("in use: %d afterwards", now)
	}
	used(0)
	w.expect("not in use", rsp, want, true)

	// Another task runs, and this one's stack belongs to it no more.
	w.f.Run(0, 1)
	w.expect("on the stack of another task", rsp, want, false)
	again := func() { // with another rule of the probed code
		w.unregister(w.probe)
		w.probe.Addr = 0
		w.register(w.probe)
		w.optimize()
	}
	w.k.Frames[w.probe.Addr] = guest.FrameRule{Outer: true}
	again()
	w.expect("on the stack of another task, without a caller", rsp, want[:1], false)
	w.f.Run(0, 0)
	w.expect("without a caller", rsp, want[:1], true)
	w.k.Frames[w.probe.Addr] = guest.FrameRule{Indirect: true, CFA: 8, Return: -8}
	if again(); w.info(w.probe).InGuest {
		t.Error("it walks from code whose rule it cannot apply")
	}
	w.k.Frames[w.probe.Addr] = guest.FrameRule{Base: guest.FrameRBP, CFA: 16, Return: -8, RBP: -16}
	again()
	if got, inGuest := w.hit(rsp-8, rsp-8); !inGuest || !slices.Equal(got, want) {
		t.Errorf("by RBP: in the guest %v:\ngot  %v\nwant %v", inGuest, got, want)
	}
	w.k.Frames[w.probe.Addr] = guest.FrameRule{CFA: 8, Return: -8}
	again()
	rsp, want = w.frames(9)
	w.expect("all is forgotten", rsp, want, false)

	// An int3 of the kernel's may be a trampoline, as one of the engine's: the address before it says nothing.
	pc := want[4]
	text := func(b byte) {
		if err := w.f.mem.write(pc, []byte{b}, mode{poke: true}); err != nil {
			t.Fatal(err)
		}
	}
	text(0xcc)
	if err := w.e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	w.optimize()
	for range 2 {
		w.expect("with an int3", rsp, want, false)
	}
	text(0x90)
	w.expect("without", rsp, want, false)
	w.expect("without, noted", rsp, want, true)

	// Text that is freed.
	w.k.Freed = guest.Range{Start: pc, End: pc + 1}
	if err := w.e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	w.optimize()
	for range 2 {
		w.expect("freed", rsp, want[:4], false)
	}
	w.k.Freed = guest.Range{}

	// A guest that writes to the table gets what it has put there, and nothing else happens.
	r := rand.New(rand.NewPCG(3, 4))
	table := w.at - 8 + 2*3072
	for round := range 200 {
		for i := range 4096 * 8 / 16 {
			w.put(table+guest.GVA(8*16*i), r.Uint64())
		}
		for _, x := range want {
			for i := range 8 {
				key := uint32(x - 1)
				w.put(table+guest.GVA(key*0x9e3779b1>>20*64)+guest.GVA(8*i), r.Uint64()<<32|uint64(key))
			}
		}
		before, host := w.inGuest(), len(w.onHost)
		if _, err := w.f.Call(0, w.start, stopAddr, 1, rsp, uint64(r.IntN(2))*rsp); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if got := int(w.inGuest()-before) + len(w.onHost) - host; got != 1 {
			t.Fatalf("round %d: %d hits", round, got)
		}
	}
}

// TestWalkTraps: a walk goes on through the frame of an interrupt of the kernel, ends at one of the user, and reads nothing outside of the
// task's stack.
func TestWalkTraps(t *testing.T) {
	const top = walkStack + stackSize
	for _, c := range []struct {
		what    string
		at      guest.GVA // of the struct pt_regs
		cs      uint64
		sp      guest.GVA
		byRBP   bool
		saved   int32 // FrameRule.RBP of the code that was interrupted
		want    int   // addresses
		inGuest bool
	}{
		{"an interrupt", top - 0x800, guest.SelKernelCode, top - 0x400, false, 0, 5, true},
		{"an interrupt, and RBP", top - 0x800, guest.SelKernelCode, top - 0x400, true, 0, 5, true},
		{"a system call", top - 0x800, guest.SelUserCode, top - 0x400, false, 0, 2, true},
		{"a system call at the stack's end", top - x86.PtRegsSize, guest.SelUserCode, 0x1000, false, 0, 2, true},
		{"behind the stack's end", top - x86.PtRegsSize + 8, guest.SelUserCode, 0x1000, false, 0, 2, false},
		{"from another stack", top - 0x800, guest.SelKernelCode, walkStack + stackStride + 0x400, false, 0, 3, false},
		{"from a stack far below", top - 0x800, guest.SelKernelCode, 8, true, 0, 3, false},
		{"RBP saved behind the stack's end", top - 0x800, guest.SelKernelCode, top - 0x20, false, 16, 3, false},
		{"RBP saved at the stack's end", top - 0x800, guest.SelKernelCode, top - 0x20, false, 8, 4, true},
	} {
		w := newWalker(t, 9, false)
		rsp, pcs := uint64(top-0x1000), make([]guest.GVA, 5)
		for i := range pcs {
			pcs[i] = w.calls + guest.GVA(16*i)
		}
		pcs[0] = w.probe.Addr
		interrupted := guest.FrameRule{CFA: 16, Return: -8, RBP: c.saved}
		if c.byRBP {
			interrupted.Base = guest.FrameRBP
		}
		w.k.Frames = map[guest.GVA]guest.FrameRule{
			pcs[0]: {CFA: 8, Return: -8}, pcs[1] - 1: {CFA: int32(uint64(c.at) - rsp - 8), Trap: true, Full: true, Return: 128, RBP: 32},
			pcs[2]: interrupted, pcs[3] - 1: {Base: guest.FrameRBP, CFA: 32, Return: -8}, pcs[4] - 1: {Outer: true},
		}
		if err := w.e.TargetChanged(); err != nil {
			t.Fatal(err)
		}
		w.optimize()
		w.put(guest.GVA(rsp), uint64(pcs[1]))
		if c.saved == 0 {
			w.put(top-0x400, 0, uint64(pcs[3]), 0, uint64(pcs[4]))
		} else {
			w.put(top-0x20, 0, uint64(pcs[3]), 0, 0)
		}
		for _, f := range []struct {
			off int
			x   uint64
		}{{x86.PtBP, uint64(top - 0x400)}, {x86.PtIP, uint64(pcs[2])}, {x86.PtCS, c.cs}, {x86.PtSP, uint64(c.sp)}} {
			if at := c.at + guest.GVA(f.off); at < top {
				w.put(at, f.x)
			}
		}
		for _, pc := range pcs[3:] { // also where the host does not come to them
			w.e.UnwindFrom(0, guest.Frame{PC: uint64(pc)}, 2)
		}
		for try, inGuest := range []bool{false, c.inGuest} {
			got, there := w.hit(rsp, 0)
			if want := w.unwind(rsp, 0); there != inGuest || len(got) != c.want || !slices.Equal(got, want) {
				t.Errorf("%s, hit %d: in the guest %v, want %v:\ngot  %v\nwant %v", c.what, try, there, inGuest, got, want)
			}
		}
	}
}

// TestWalkSettled: a vCPU that is stopped anywhere in a walk, or around it, is moved to where its registers are the guest's; and the hit
// happens once.
func TestWalkSettled(t *testing.T) {
	w := newWalker(t, 3, true)
	rsp, want := w.frames(5)
	v, ends := w.f.cpus[0], 0
	run := func(settleAt int) (steps int) {
		v.regs = probe.Regs{RIP: uint64(w.start), RSP: rsp, RDX: rsp, RDI: stopAddr, RFLAGS: 2}
		v.cpl, v.err = 0, nil
		for steps = 0; v.regs.RIP != stopAddr; steps++ {
			if s := v.state(); steps == settleAt && w.e.InCode(guest.GVA(v.regs.RIP)) {
				at, ok := w.e.Settle(0, s)
				for n := 0; !ok; n++ {
					if n > 1000 {
						t.Fatalf("step %d: none of %v is reached", settleAt, at)
					}
					if v.step(); slices.Contains(at, guest.GVA(v.regs.RIP)) {
						ends++
						_, ok = w.e.Settle(0, s)
						if !ok {
							t.Fatalf("step %d: at its end %#x it cannot be settled", settleAt, v.regs.RIP)
						}
					}
				}
				if r := v.regs; r.RSP != rsp || r.RAX|r.RSI|r.RCX|r.R8|r.R11 != 0 || r.RFLAGS&x86.FlagIF != 0 {
					t.Fatalf("step %d: settled with %+v", settleAt, r)
				}
			}
			if v.step(); v.err != nil {
				t.Fatalf("step %d: %v", steps, v.err)
			}
		}
		return steps
	}
	for _, inGuest := range []bool{false, true} {
		total := run(-1)
		if !inGuest {
			w.put(w.at-8, 1) // the host has noted the rules by now, but the walk is in use
			total = run(-1)
		}
		for k := range total {
			before, host := w.inGuest(), len(w.onHost)
			run(k)
			if a, b := w.inGuest()-before, len(w.onHost)-host; a+uint64(b) != 1 || (a == 1) != inGuest {
				t.Fatalf("step %d: %d hits in the guest, %d on the host", k, a, b)
			}
			if inGuest {
				if got := binary.LittleEndian.Uint64(w.bytes(w.at-8, 8)); got != 0 {
					t.Fatalf("step %d: the walk is in use", k)
				}
			} else if got := w.onHost[host]; !slices.Equal(got, want[:3]) {
				t.Fatalf("step %d: %v", k, got)
			}
		}
		w.put(w.at-8, 0)
	}
	if ends < 100 {
		t.Errorf("only %d times it ran on to an end", ends)
	}
}
