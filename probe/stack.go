package probe

import (
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
	f := innermostFrame(State{Regs: c.Regs, Root: c.Root, CPL: c.CPL})
	if at := guest.GVA(f.PC) - 1; at == c.Addr || f.User && c.FileCode(at) == c.Addr {
		f.PC-- // as Kprobe.Pre sees it
	}
	f.PC = uint64(c.cpu.Home(guest.GVA(f.PC)))
	syms := c.cpu.target.Symbols()
	img, _ := syms.(Image)
	for n := range pcs {
		if n > 0 && !c.cpu.caller(&f, c.Root, syms, img, false) {
			break
		}
		pcs[n] = guest.GVA(f.PC)
		if f.User {
			user++
		} else {
			kernel++
		}
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
// Kernels are an exception, because only the host walks their stacks: programs in the
// guest follow frame pointers (Chain), and programs on the host must find the same
// callers, so the function that was interrupted is not among the callers of either.
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
