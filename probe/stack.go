package probe

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// Stack stores the address of the interrupted code, and the addresses that it and
// each of its callers in turn will return to. It returns the number of addresses. It
// ends when pcs is full, at the outermost function, and where the stack makes no
// sense. All addresses are the guest's own: for a trampoline or slot it stores the
// address that this replaces, also in nested activations of kretprobes.
//
// A frame is found by the image's call frame information or, without that, by the
// effect of a function's first instructions on the stack, and by the chain of frame
// pointers (System V ABI, 3.2.2). Code without either is skipped. If the information
// describes interrupts and system calls, as a Linux kernel's does, the code that they
// interrupted follows, in the end that of the user.
//
// In a pre handler the first address is the probe's, in a return handler the
// one that the function returns to. It allocates nothing.
func (c *Context) Stack(pcs []guest.GVA) int {
	kernel, user := c.Stacks(pcs)
	return kernel + user
}

// Stacks is Stack, and returns how many of the addresses are the kernel's, which come
// first, and how many the user's.
func (c *Context) Stacks(pcs []guest.GVA) (kernel, user int) {
	c.cpu.walked = true
	f := innermostFrame(State{Regs: c.Regs, Root: c.Root, CPL: c.CPL})
	if at := guest.GVA(f.PC) - 1; at == c.Addr || f.User && c.FileCode(at) == c.Addr {
		f.PC-- // as Kprobe.Pre sees it
	}
	f.PC = uint64(c.cpu.Home(guest.GVA(f.PC)))
	syms := c.cpu.target.Symbols()
	img, _ := syms.(Image)
	for n := range pcs {
		if n > 0 && !c.cpu.caller(&f, c.Root, syms, img, false) {
			return kernel, user
		}
		pcs[n] = guest.GVA(f.PC)
		if f.User {
			user++
		} else {
			kernel++
		}
	}
	if len(pcs) > 0 {
		noteLast(c.cpu, c.Root, &f, syms, img)
	}
	return kernel, user
}

// innermostFrame returns the frame of the code that runs in the state s.
func innermostFrame(s State) guest.Frame {
	r := s.Regs
	return guest.Frame{PC: r.RIP, Exact: true, User: s.CPL == 3, Known: true, Regs: [...]uint64{guest.FrameRSP: r.RSP, guest.FrameRBP: r.RBP,
		guest.FrameR10: r.R10, guest.FrameR13: r.R13, guest.FrameRDI: r.RDI, guest.FrameRDX: r.RDX}}
}

// Unwind returns the frame of the code that runs in the state s, and the frames of
// its callers, as Context.Stack visits them, at most limit; more says that there may
// be others. The world is stopped.
func (e *Engine) Unwind(s State, limit int) (frames []guest.Frame, more bool) {
	return e.UnwindFrom(s.Root, innermostFrame(s), limit)
}

// UnwindFrom is Unwind of a stack whose innermost frame is f.
func (e *Engine) UnwindFrom(root guest.GPA, f guest.Frame, limit int) (frames []guest.Frame, more bool) {
	c := &cpu{core: &e.core, mem: operand{target: e.target, user: e.pages}}
	syms := e.target.Symbols()
	img, _ := syms.(Image)
	for f.PC = uint64(e.Home(guest.GVA(f.PC))); len(frames) < limit; {
		frames = append(frames, f)
		if !c.caller(&f, root, syms, img, true) {
			return frames, false
		}
	}
	return frames, true
}

// caller replaces f by the frame of its caller, and reports whether there is one. For
// traps see frameRule.
func (c *cpu) caller(f *guest.Frame, root guest.GPA, syms Symbols, img Image, traps bool) bool {
	at := f.RuleAddr()
	if f.User {
		at = c.fileCode(root, at)
	}
	rule := frameRule(at, f.Exact, syms, img, traps)
	if !f.User {
		noteRule(c, root, at, rule, syms)
	}
	// The interrupted code's stack is read with its own rights. An address that
	// cannot be read ends a walk, and is not an error.
	s := State{Root: root}
	if f.User {
		s.CPL = 3
	}
	if !f.Caller(rule, func(addr uint64) (uint64, bool) {
		w, ok := c.readWord(s, addr)
		return uint64(w), ok
	}) {
		return false
	}
	f.PC = uint64(c.Home(guest.GVA(f.PC)))
	if f.User {
		// Nothing is known of the user code of a kernel.
		if _, ok := syms.(Kernel); ok {
			return f.PC != 0 && f.PC>>47 == 0
		}
	}
	return syms.IsText(guest.GVA(f.PC))
}

// frameRule returns the rule at at; exact says that it is the next instruction to
// run. If traps is not set, the entry of an interrupt gets the rule of a function.
// Kernels are an exception, because walks of their stacks in the guest apply the same
// rules (noteRule): other programs in the guest follow frame pointers (Chain), and
// programs on the host must find the same callers, so the function that was interrupted
// is not among the callers of either.
func frameRule(at guest.GVA, exact bool, syms Symbols, img Image, traps bool) guest.FrameRule {
	if img != nil {
		rule, ok := img.FrameRule(at)
		if ok && rule.Trap && !traps {
			if _, kernel := syms.(Kernel); !kernel {
				ok = false
				// After its first instructions, RSP's word is a register of the
				// interrupted code, or an error code.
				exact = exact && rule.Base == guest.FrameRSP && rule.CFA+rule.Return == 0
			}
		}
		if ok {
			return rule
		}
	}
	if exact {
		if rule, ok := prologue(at, syms); ok {
			return rule
		}
	}
	return ByPointer
}

// prologue returns the rule for pc if it is at the beginning of a function or
// directly after its first push %rbp.
func prologue(pc guest.GVA, syms Symbols) (guest.FrameRule, bool) {
	s, ok := syms.Find(pc)
	if !ok {
		return guest.FrameRule{}, false
	}
	entry := s.Addr
	code := syms.Code(entry, len(x86.Endbr64)+1)
	if len(code) > len(x86.Endbr64) && x86.HasEndbr64(code) {
		if pc == entry {
			pc += guest.GVA(len(x86.Endbr64))
		}
		entry += guest.GVA(len(x86.Endbr64))
		code = code[len(x86.Endbr64):]
	}
	switch {
	case pc == entry:
		return guest.FrameRule{CFA: 8, Return: -8}, true
	case pc == entry+1 && len(code) > 0 && code[0] == x86.PushRBP:
		return guest.FrameRule{CFA: 16, Return: -8, RBP: -16}, true
	}
	return guest.FrameRule{}, false
}

// firstRule returns the rule of the code that a probe at addr interrupts.
func (k *core) firstRule(addr guest.GVA) (uint32, error) {
	syms := k.target.Symbols()
	img, _ := syms.(Image)
	if r, ok := packRule(frameRule(addr, true, syms, img, false)); ok {
		return r, nil
	}
	return 0, fmt.Errorf("only the host finds the caller of the code at %v", addr)
}

// noteRule notes the rule at at, which the walk of a kernel's stack has applied, for
// walks in the guest, if it means the same there whenever the address is met. It
// allocates nothing.
func noteRule(c *cpu, root guest.GPA, at guest.GVA, rule guest.FrameRule, syms Symbols) {
	w := c.walks.Load()
	if w == nil {
		return
	}
	packed, ok := packRule(rule)
	if !ok || at < walkLowest {
		return
	}
	if now, ok := w.find(at); ok && now == packed {
		return
	}
	// As a return address, at + 1 may be a trampoline: one of the engine's own, or an
	// int3 of the kernel's that serves as one.
	if c.code.ResidentAt(at) != nil || c.code.ResidentAt(at+1) != nil || !coreText(syms, at) || !coreText(syms, at+1) {
		return
	}
	if c.target.ReadMemory(root, at+1, c.word[:1]) != nil || c.word[0] == x86.Int3 {
		return
	}
	w.put(at, packed)
}

// noteLast notes the rule of the last address that a walk needs: a walk in the guest
// looks for it, too.
func noteLast(c *cpu, root guest.GPA, f *guest.Frame, syms Symbols, img Image) {
	if at := f.RuleAddr(); !f.User && c.walks.Load() != nil {
		noteRule(c, root, at, frameRule(at, f.Exact, syms, img, false), syms)
	}
}

// noteStack notes the rules that the walk of d lacked at a hit on st whose handlers
// have not walked the stack: their filters may let none of the hits pass that have
// these addresses on it, which would take an exit each time.
func noteStack(c *cpu, s State, st *site, d *detour) {
	need := 0
	for _, x := range d.run {
		need = max(need, x.Walk)
	}
	ip, ok := st.reportedAddr()
	if need == 0 || !ok {
		return
	}
	f := innermostFrame(s)
	f.PC = uint64(ip)
	syms := c.target.Symbols()
	img, _ := syms.(Image)
	for range need - 1 {
		if !c.caller(&f, s.Root, syms, img, false) || f.User {
			return
		}
	}
	noteLast(c, s.Root, &f, syms, img)
}
