package probe_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// filed is a target whose user code is in files: the engine has no memory in processes.
type filed struct{ *stacks }

func (f filed) Capabilities(user bool) probe.Capabilities {
	c := f.Fake.Capabilities(user)
	if user {
		c.NoExec, c.NoStage, c.InPlace = "no room", "no room", true
	}
	return c
}

func (filed) FilePlace(_ guest.GPA, addr guest.GVA) (guest.GVA, bool) { return addr, true }

func (filed) FileCode(_ guest.GPA, addr guest.GVA) (guest.GVA, bool) { return addr, true }

// fileCalls are functions of a file, and who calls them.
type fileCalls struct {
	filed
	t *testing.T
	e *probe.Engine
	g uint64 // R14
}

func newFileCalls(t *testing.T) *fileCalls {
	t.Helper()
	build := func(frame uint32) *guest.Image {
		img, err := probetest.BuildImage(userBase, true,
			probetest.Func{Name: "frame", Code: []byte("\x50\x58\xb8\x07\x00\x00\x00\xc3")},
			probetest.Func{Name: "tail", Code: binary.LittleEndian.AppendUint32([]byte("\xff\xc7\xe9"), frame)},
			probetest.Func{Name: "pops", Code: []byte("\x90\xc2\x10\x00")},
			probetest.Func{Name: "both", Code: []byte("\x85\xff\x74\x03\x90\xc3\xcc\x90\x90\xc3")},
			probetest.Func{Name: "aborts", Code: []byte("\x85\xff\x74\x01\xc3\xe8\xf6\xff\xff\xff")},
			probetest.Func{Name: "wild", Code: []byte("\xff\xe0")},
			probetest.Func{Name: "lost", Code: []byte("\xeb\x02\x90\xc3\xc3")},
			probetest.Func{Name: "elsewhere", Code: []byte("\xe9\x00\x10\x00\x00")})
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	img := build(0)
	var at [2]guest.GVA
	for i, name := range []string{"frame", "tail"} {
		s, err := img.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		at[i] = s.Addr
	}
	f := &fileCalls{filed: filed{&stacks{Fake: newFake(t, 1, build(uint32(at[0]-at[1]-7))), words: map[guest.GPA]map[guest.GVA]uint64{}}}, t: t}
	var err error
	if f.e, err = probe.New(f.filed, probe.Options{}); err != nil {
		t.Fatal(err)
	}
	return f
}

// arriveAt has the vCPU come to an instruction of a function, with its return address at slot.
func (f *fileCalls) arriveAt(name string, off, root, slot, ret uint64) {
	f.t.Helper()
	sym, err := f.Symbols().Lookup(name)
	if err != nil {
		f.t.Fatal(err)
	}
	if f.words[guest.GPA(root)] == nil {
		f.words[guest.GPA(root)] = map[guest.GVA]uint64{}
	}
	f.words[guest.GPA(root)][guest.GVA(slot)] = ret
	regs := probe.Regs{RIP: uint64(sym.Addr) + off, RSP: slot, RAX: root + off, R14: f.g}
	if v := f.e.Hit(0, probe.State{Regs: &regs, Root: guest.GPA(root), CPL: 3}, probe.Trap{Kind: probe.TrapBreakpoint}); v.Action != probe.Resume && v.Action != probe.StepInPlace {
		f.t.Fatalf("%s+%#x: %+v", name, off, v)
	}
	if got := f.words[guest.GPA(root)][guest.GVA(slot)]; got != ret {
		f.t.Errorf("%s+%#x: the return address is %#x, was %#x", name, off, got, ret)
	}
}

// TestLeaves: calls of functions of a file return by the instructions that leave
// them, each by its own, and the stack is not changed.
func TestLeaves(t *testing.T) {
	const a, b, slot, ret = 0x1000, 0x2000, uint64(userStacks + 0x800), uint64(userRet)
	var order []string
	f := newFileCalls(t)
	counts := func(r *probe.Kretprobe, handled, returns, abandoned uint64, inUse int) {
		t.Helper()
		i, ok := f.e.Info(&r.Kprobe)
		if s := i.Stats; !ok || s.Handled != handled || s.Returns != returns || s.Abandoned != abandoned || i.InUse != inUse || s.Missed != 0 {
			t.Errorf("%s: %+v, in use %d; want %d handled, %d returns, %d abandoned, %d in use", r.Symbol, s, i.InUse, handled, returns, abandoned, inUse)
		}
	}
	on := func(name, symbol string) *probe.Kretprobe {
		t.Helper()
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: symbol}, DataSize: 8}
		r.Entry = func(c *probe.Context) int {
			binary.LittleEndian.PutUint64(c.Data, c.Regs.RSP)
			return 0
		}
		r.Return = func(c *probe.Context) {
			if sp := binary.LittleEndian.Uint64(c.Data); c.Regs.RSP-sp != map[bool]uint64{true: 24, false: 8}[symbol == "pops"] || uint64(c.Ret) != c.Regs.RIP {
				t.Errorf("%s returns to %v with RIP %#x and RSP %#x, entered with RSP %#x", symbol, c.Ret, c.Regs.RIP, c.Regs.RSP, sp)
			}
			order = append(order, name)
		}
		if err := f.e.Register(r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	frame, newer, tail, pops := on("frame", "frame"), on("newer", "frame"), on("tail", "tail"), on("pops", "pops")
	if n := len(f.e.List()); n != 4 {
		t.Errorf("%d probes are listed", n)
	}

	f.arriveAt("frame", 0, a, slot, ret)
	counts(frame, 1, 0, 0, 1)
	f.arriveAt("frame", 7, b, slot, ret)   // a fork's copy
	f.arriveAt("frame", 7, a, slot-8, ret) // another thread
	counts(frame, 1, 0, 0, 1)
	f.arriveAt("frame", 7, a, slot, ret)
	counts(frame, 1, 1, 0, 0)
	f.arriveAt("frame", 7, a, slot, ret) // which was not seen to begin
	counts(newer, 1, 1, 0, 0)

	f.arriveAt("frame", 0, a, slot, ret) // left by a long jump, and called again
	f.arriveAt("frame", 0, a, slot, ret+5)
	counts(frame, 3, 1, 1, 1)
	f.arriveAt("frame", 0, a, slot-16, ret+6) // recursion
	f.arriveAt("frame", 7, a, slot-16, ret+6)
	f.arriveAt("frame", 7, a, slot, ret+5)
	counts(frame, 4, 3, 1, 0)

	f.arriveAt("tail", 0, a, slot, ret) // ends with a jump to frame
	f.arriveAt("frame", 0, a, slot, ret)
	f.arriveAt("frame", 7, a, slot, ret)
	counts(tail, 1, 1, 0, 0)
	counts(frame, 5, 4, 1, 0)
	f.arriveAt("pops", 0, a, slot, ret)
	f.arriveAt("pops", 1, a, slot, ret)
	counts(pops, 1, 1, 0, 0)
	if got, want := strings.Join(order, " "), "frame newer frame newer frame newer frame newer tail pops"; got != want {
		t.Errorf("returned %s, want %s", got, want)
	}

	// Its stack is used again.
	f.arriveAt("frame", 0, b, slot, ret)
	f.words[b][userStacks+0x800] = 4711
	counts(frame, 6, 4, 2, 0)

	f.arriveAt("frame", 0, a, slot, ret)
	if err := f.e.Unregister(&frame.Kprobe, &newer.Kprobe, &tail.Kprobe, &pops.Kprobe); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"frame", "tail", "pops"} {
		if b := f.textOf(name); strings.Contains(b, "\xcc") {
			t.Errorf("%s is % x when no probe is there", name, b)
		}
	}
}

// TestLeavesOfGo: calls of goroutines are followed when the runtime moves their stacks, and no
// two goroutines are taken for each other when one has the memory that was another's stack.
func TestLeavesOfGo(t *testing.T) {
	const root, ret, size = 0x1000, uint64(userRet), 0x800
	const g1, g2 = uint64(userStacks + 0x10000), uint64(userStacks + 0x11000)
	const s1, s2, s3 = uint64(userStacks + 0x1000), uint64(userStacks + 0x3000), uint64(userStacks + 0x5000)
	f := newFileCalls(t)
	returns := 0
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "frame"}, DataSize: 8,
		Entry: func(c *probe.Context) int {
			binary.LittleEndian.PutUint64(c.Data, c.Regs.R14)
			return 0
		},
		Return: func(c *probe.Context) {
			if g := binary.LittleEndian.Uint64(c.Data); g != c.Regs.R14 {
				t.Errorf("a call of %#x returns in %#x", g, c.Regs.R14)
			}
			returns++
		},
	}
	if err := f.e.Register(r); err != nil {
		t.Fatal(err)
	}
	f.words[root] = map[guest.GVA]uint64{}
	stack := func(g, lo uint64) { f.words[root][guest.GVA(g)], f.words[root][guest.GVA(g+8)] = lo, lo+size }
	at := func(off, g, slot uint64) { f.g = g; f.arriveAt("frame", off, root, slot, ret) }
	want := func(when string, handled, abandoned uint64, inUse int) {
		t.Helper()
		i, _ := f.e.Info(&r.Kprobe)
		if s := i.Stats; s.Handled != handled || s.Returns != uint64(returns) || s.Abandoned != abandoned || i.InUse != inUse || handled != uint64(returns)+abandoned+uint64(inUse) {
			t.Errorf("%s: %+v, %d return handlers, in use %d", when, s, returns, i.InUse)
		}
	}
	stack(g1, s1)
	at(0, g1, s1+0x700)
	at(0, g1, s1+0x6c0) // recursion
	want("under way", 2, 0, 2)
	stack(g1, s2) // grown; another goroutine gets the old stack
	for _, off := range []uint64{0x700, 0x6c0} {
		f.words[root][guest.GVA(s2+off)] = ret
	}
	stack(g2, s1)
	at(0, g2, s1+0x700)
	want("moved", 3, 0, 3)
	at(7, g1, s2+0x6c0)
	at(7, g2, s1+0x700)
	at(7, g1, s2+0x700)
	want("returned", 3, 0, 0)

	// One that is left by a panic, and one whose goroutine is gone.
	at(0, g1, s2+0x700)
	at(0, g1, s2+0x700)
	want("called again", 5, 1, 1)
	stack(g1, s3)
	f.words[root][guest.GVA(g1)], f.words[root][guest.GVA(g1+8)] = 0, 0
	want("without the goroutine", 5, 2, 0)

	// R14 is not Go's: only the place identifies it.
	at(0, 5, s3+0x700)
	at(7, 5, s3+0x700)
	want("without a descriptor", 6, 2, 0)
}

// goImage is an image of a Go program.
type goImage struct{ *guest.Image }

func (goImage) WalksStacks(guest.GVA) string { return "Go" }

// TestReturnsOfGo: no return address is replaced for a runtime that looks them up. Kprobes
// are as ever, and so are kretprobes on files, which replace none.
func TestReturnsOfGo(t *testing.T) {
	h, err := probetest.NewFake(probetest.FakeOptions{Symbols: func(img *guest.Image) probe.Symbols { return goImage{img} }})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "kprobe_target"}}
	var no *probe.Error
	if err := h.Engine().Register(r); !errors.As(err, &no) || no.Code != probe.CodeWalksStacks || !errors.Is(err, syscall.EOPNOTSUPP) || !strings.Contains(err.Error(), "--at-rets") {
		t.Errorf("kretprobe: %v", err)
	}
	k := &probe.Kprobe{Symbol: "kprobe_target", Pre: func(*probe.Context) int { return 0 }}
	if err := h.Engine().Register(k); err != nil {
		t.Errorf("kprobe: %v", err)
	}
}

func (f *fileCalls) textOf(name string) string {
	f.t.Helper()
	sym, err := f.Symbols().Lookup(name)
	if err != nil {
		f.t.Fatal(err)
	}
	b := make([]byte, sym.Size)
	if err := f.Fake.ReadMemory(0, sym.Addr, b); err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

// TestLeavesUnknown: a function of a file that does not show how it is left has no kretprobe.
func TestLeavesUnknown(t *testing.T) {
	f := newFileCalls(t)
	for name, want := range map[string]string{
		"frame": "", "tail": "", "pops": "", "both": "", "aborts": "",
		"wild":      "where this jump leads is not known",
		"lost":      "no known path leads to this return",
		"elsewhere": "a jump to code that is not a named function",
	} {
		_, err := f.e.Check(&probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: name}})
		var no *probe.Error
		if want == "" && err != nil || want != "" && (!errors.As(err, &no) || no.Code != probe.CodeExitsUnknown || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	_, err := f.e.Check(&probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "frame"}, MaxActive: 4097})
	if err == nil || !strings.Contains(err.Error(), "at most 4096") {
		t.Errorf("too many instances: %v", err)
	}
}
