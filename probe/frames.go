package probe

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// Chain is the data that code in the guest needs to walk stacks by frame pointers
// with the same result as Context.Stack. It must not be changed.
type Chain struct {
	Text [2][]guest.Range // where code is, by guest.Level
	// Calls are the return addresses of calls after which another rule than that of
	// frame pointers holds (ByPointer). For Returns the same is true once the call
	// has returned. Both ascend.
	Calls, Returns []FrameAt

	syms Symbols // that the rules apply to
}

// FrameAt is the rule at an address. Its base is RSP or RBP, and the return address
// is right below the caller's RSP.
type FrameAt struct {
	PC guest.GVA
	guest.FrameRule
}

// ByPointer is the rule of code that keeps frame pointers, push %rbp; mov %rsp,%rbp.
var ByPointer = guest.FrameRule{Base: guest.FrameRBP, CFA: 16, Return: -8, RBP: -16}

// Bounds of a Chain.
const (
	maxChainText  = 32 << 20 // bytes of code to scan
	maxChainRules = 256      // that are not ByPointer
)

var errNotFixed = errors.New("the kernel's text comes and goes, and its stacks are not walked by frame pointers")

// simple reports whether the rule is one that a Chain may have.
func (f *FrameAt) simple() bool {
	return f.Outer || f.Base <= guest.FrameRBP && !f.Indirect && !f.Trap && !f.AtRBP && f.Return == -8
}

// chainOf makes the Chain of an image: it scans all calls.
func chainOf(syms Symbols) (*Chain, error) {
	img, ok := syms.(Image)
	if _, kernel := syms.(Kernel); !ok || kernel {
		return nil, errNotFixed
	}
	ch := &Chain{Text: [2][]guest.Range{img.Text(false), img.Text(true)}, syms: syms}
	size, text := uint64(0), slices.Concat(ch.Text[:]...)
	slices.SortFunc(text, func(x, y guest.Range) int { return cmp.Compare(x.Start, y.Start) })
	for _, r := range text {
		size += uint64(r.End - r.Start)
	}
	if size > maxChainText {
		return nil, fmt.Errorf("%d bytes of code are too many to look for calls that keep no frame pointers, of at most %d", size, maxChainText)
	}
	starts := map[guest.GVA]bool{}
	for _, s := range img.Symbols() {
		starts[s.Addr] = true
	}
	for _, r := range text {
		code := syms.Code(r.Start, int(r.End-r.Start))
		for at := 0; at < len(code); {
			in, err := x86.Decode(code[at:])
			n, call := 1, false
			if err == nil {
				n, call = int(in.Len), in.Class() == x86.ClassCall || in.Class() == x86.ClassCallInd
			}
			for k := 1; k < n; k++ {
				if starts[r.Start+guest.GVA(at+k)] { // data precedes it
					n, call = k, false
				}
			}
			if at += n; !call {
				continue
			}
			if err := ch.add(r.Start+guest.GVA(at), syms, img); err != nil {
				return nil, err
			}
		}
	}
	return ch, nil
}

// add looks at the rules after a call that returns to pc.
func (ch *Chain) add(pc guest.GVA, syms Symbols, img Image) error {
	for _, x := range []struct {
		to *[]FrameAt
		at guest.GVA
	}{{&ch.Calls, pc - 1}, {&ch.Returns, pc}} {
		f := FrameAt{pc, frameRule(x.at, x.at == pc, syms, img, false)}
		if f.FrameRule == ByPointer {
			continue
		}
		if !f.simple() {
			return fmt.Errorf("only the host finds the caller of the code in front of %v", pc)
		}
		if *x.to = append(*x.to, f); len(*x.to) > maxChainRules {
			return fmt.Errorf("more than %d calls are in code that keeps no frame pointers", maxChainRules)
		}
	}
	return nil
}

// How code in the guest finds the address that a trampoline replaces. At trampJump is
// a near jump, and in front of its target are four words: the magic number; the
// address of the word with the address that the first trampoline replaces, or 0 if it
// is not known; how far apart these words are, with their number in the upper half;
// and the address of the first trampoline.
const (
	trampJump  = trampSize - 6
	trampMagic = 0x9d1f_5e37_c2a4_6b80
)

// Trampolines returns that number, where the jump is, and how far apart trampolines are.
func Trampolines() (magic uint64, jump, size int) { return trampMagic, trampJump, trampSize }

// appendHead appends these words.
func (t *instances) appendHead(a *x86.Asm) {
	next, stride := uint64(0), 8
	switch {
	case t.shared():
		next, stride = uint64(t.records())+8*instNext, t.stride
	case t.shown != nil:
		next = uint64(t.shownAt)
	}
	var b [32]byte
	for i, w := range []uint64{trampMagic, next, uint64(t.n)<<32 | uint64(stride), uint64(t.tramps)} {
		le.PutUint64(b[8*i:], w)
	}
	a.Append(b[:])
}

// show lets the guest see the addresses that the trampolines of a private table
// replace, if there is memory for that.
func (x *returns) show(t *instances) {
	if x.opt.placer == nil || uint64(t.n) > math.MaxInt32/16 {
		return
	}
	at, b, err := x.opt.placer.AllocShared(8*t.n, t.user)
	if err != nil {
		return // programs in the guest cannot walk stacks with these on them, and report that
	}
	t.shownAt, t.shown = at, guest.AtomicWords(b)
}

// setNext makes next the address that the trampoline of record i replaces.
func (t *instances) setNext(i int, next guest.GVA) {
	t.word(i, instNext).Store(uint64(next))
	if t.shown != nil {
		t.shown[i].Store(uint64(next))
	}
}
