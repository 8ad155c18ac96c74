package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// frame is one activation on a stack.
type frame struct{ pc, sp, bp uint64 }

// maxFrame bounds the distance from one frame to the next: stacks are not
// larger.
const maxFrame = 8 << 20

// Stack stores where the interrupted code stands, and where it, and each
// of its callers in turn, will return to, and returns how many those are. It
// ends where pcs is full, at the outermost function, and where the stack makes no
// sense. All addresses are the guest's own: of a trampoline or slot it shows the
// address that stands for, also in nested activations of kretprobes.
//
// A frame is found by the image's call frame information; where there is none,
// by what a function's first instructions do to the stack, and by the chain of
// frame pointers (System V ABI, 3.2.2). Code without either is passed over.
//
// In a pre handler the first address is the probe's, in a return handler the
// one that the function returns to. It allocates nothing.
func (c *Context) Stack(pcs []guest.GVA) int {
	if len(pcs) == 0 {
		return 0
	}
	f := frame{pc: c.Regs.RIP, sp: c.Regs.RSP, bp: c.Regs.RBP}
	if guest.GVA(f.pc) == c.Addr+1 {
		f.pc-- // as Kprobe.Pre sees it
	}
	f.pc = uint64(c.cpu.Home(guest.GVA(f.pc)))
	syms := c.cpu.target.Symbols()
	img, _ := syms.(Image)
	pcs[0] = guest.GVA(f.pc)
	n := 1
	for ; n < len(pcs) && c.caller(&f, n == 1, syms, img); n++ {
		pcs[n] = guest.GVA(f.pc)
	}
	return n
}

// caller goes to the caller of f, and reports whether there is one. exact says
// that f.pc is the next instruction to run, not one behind a call.
func (c *Context) caller(f *frame, exact bool, syms Symbols, img Image) bool {
	at := guest.GVA(f.pc)
	if !exact {
		at-- // a call may be the last instruction of its function
	}
	sp := f.sp
	rule, ok := guest.FrameRule{}, false
	if img != nil {
		rule, ok = img.FrameRule(at)
	}
	if !ok && exact {
		rule, ok = prologue(at, syms)
	}
	if !ok {
		// push %rbp; mov %rsp,%rbp: what RBP points to since.
		rule = guest.FrameRule{FromRBP: true, CFA: 16, Return: -8, RBP: -16}
	}
	if rule.Outer {
		return false
	}
	cfa := sp
	if rule.FromRBP {
		cfa = f.bp
	}
	cfa += uint64(int64(rule.CFA))
	// Stacks grow down, so callers are above.
	if cfa <= sp || cfa-sp > maxFrame || cfa%8 != 0 {
		return false
	}
	slot := cfa + uint64(int64(rule.Return))
	ret, ok := c.stackWord(slot)
	if !ok {
		return false
	}
	if rule.RBP != 0 {
		bp, ok := c.stackWord(cfa + uint64(int64(rule.RBP)))
		if !ok {
			return false
		}
		f.bp = bp
	}
	ret = uint64(c.cpu.Home(guest.GVA(ret)))
	if !syms.IsText(guest.GVA(ret)) {
		return false
	}
	f.pc, f.sp = ret, cfa
	return true
}

// prologue returns the rule for pc when it is at the beginning of a function or
// directly behind its first push %rbp.
func prologue(pc guest.GVA, syms Symbols) (guest.FrameRule, bool) {
	s, ok := syms.Find(pc)
	if !ok {
		return guest.FrameRule{}, false
	}
	entry := s.Addr
	code := syms.Code(entry, len(insn.Endbr64)+1)
	if len(code) > len(insn.Endbr64) && insn.HasEndbr64(code) {
		if pc == entry {
			pc += guest.GVA(len(insn.Endbr64))
		}
		entry += guest.GVA(len(insn.Endbr64))
		code = code[len(insn.Endbr64):]
	}
	switch {
	case pc == entry:
		return guest.FrameRule{CFA: 8, Return: -8}, true
	case pc == entry+1 && len(code) > 0 && code[0] == insn.PushRBP:
		return guest.FrameRule{CFA: 16, Return: -8, RBP: -16}, true
	}
	return guest.FrameRule{}, false
}

// stackWord reads a word of the interrupted code's stack. An address that cannot
// be read ends a walk, and is nobody's fault.
func (c *Context) stackWord(addr uint64) (uint64, bool) {
	w, ok := c.cpu.readWord(State{Root: c.Root, CPL: c.CPL}, addr)
	return uint64(w), ok
}
