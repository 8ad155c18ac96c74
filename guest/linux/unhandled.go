package linux

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// unhandledText is the reason for not probing code that a CPU may run before it has a
// handler for breakpoints.
const unhandledText = "it runs before the kernel has a handler for breakpoints, and this host hands them to that"

// leftText is the reason for not probing code that a CPU may run when it no longer
// has a handler.
const leftText = "it runs when the kernel has no handler for breakpoints any more (kexec), and this host hands them to that"

// leaves is the function that removes the IDT, and then starts another kernel
// (arch/x86/kernel/machine_kexec_64.c). A CPU does not return from the function that
// restarts the machine (native_machine_emergency_restart): there any exception serves
// its purpose.
const leaves = "machine_kexec"

// firsts are the places where CPUs begin in the kernel (arch/x86/kernel/head_64.S),
// and the functions that these continue with by a pointer: x86_64_start_kernel, or
// start_secondary on all but the first CPU.
var firsts = []string{"startup_64", "secondary_startup_64", "secondary_startup_64_no_verify", "common_startup_64", "x86_64_start_kernel", "start_secondary"}

// handled are the functions that a CPU calls to get an IDT with a handler for
// breakpoints (arch/x86/kernel/idt.c), and those that it reaches only after that.
var handled = []string{"idt_setup_early_handler", "load_current_idt", "start_kernel", "x86_64_start_reservations", "cpu_startup_entry"}

// never are patterns of functions that a CPU without a handler does not call, except
// when it gives up: functions for printing, scheduling or tracing, and for guests
// with encrypted memory. They lead to almost all other code.
var never = []string{
	"panic", "*printk*", "*warn*", "__SCT__WARN*", "__ubsan_*", "__stack_chk_fail", "*fortify_*", "dump_stack*", "exc_*",
	"*preempt_schedule*", "__traceiter_*", "__SCT__tp_func_*", "do_trace_*", "*sev_es_*", "*svsm_*", "snp_abort",
}

// The bounds of the walk: nested calls, and instructions. Kernels have 10 and 10,000.
const (
	maxUnhandledDepth = 100
	maxUnhandledInsts = 1 << 20
)

// BreakpointsByVector says that the host delivers breakpoints to the guest's own
// handler of vector 3: then code that the kernel runs before it has a handler, or
// when it no longer has one, must not be probed, because a breakpoint there ends the
// guest. Call it before the view is used.
func (v *View) BreakpointsByVector() {
	p := v.core
	p.unhandled = map[guest.GVA]string{}
	left := newUnhandledWalk(p)
	for _, a := range left.placesWithoutIDT() {
		left.hasHandler(a, 0)
	}
	for a := range left.found {
		p.unhandled[a] = leftText
	}
	w := newUnhandledWalk(p)
	for _, name := range handled {
		if a, ok := p.k.mem.Lookup(name); ok {
			w.known[a] = true
		}
	}
	for _, name := range firsts {
		if a, ok := p.k.mem.Lookup(name); ok {
			w.hasHandler(a, 0)
		}
	}
	for a := range w.found {
		p.unhandled[a] = unhandledText
	}
}

func newUnhandledWalk(p *piece) *unhandledWalk {
	w := &unhandledWalk{piece: p, found: map[guest.GVA]bool{}, known: map[uint64]bool{}, replaced: map[uint64][]uint64{}, left: maxUnhandledInsts}
	for _, e := range p.sites.edges {
		w.replaced[e.from] = append(w.replaced[e.from], e.to)
	}
	return w
}

// placesWithoutIDT returns the places where leaves continues after it has loaded
// another IDT, itself or by a call.
func (w *unhandledWalk) placesWithoutIDT() (at []uint64) {
	first, _ := w.k.mem.Lookup(leaves)
	invalidate, _ := w.k.mem.Lookup("idt_invalidate")
	in, ok := w.Find(w.slidAddr(first))
	if first == 0 || !ok {
		return nil
	}
	for a := first; a < first+in.Size; {
		i, ok := w.decode(a)
		if !ok {
			break
		}
		a += uint64(i.Len)
		to, leads := w.target(&i, a-uint64(i.Len))
		if i.Map == x86.Map0F && i.Opcode == 0x01 && i.Mod() != 3 && i.Reg() == 3 || leads && to != 0 && to == invalidate { // lidt
			at = append(at, a)
		}
	}
	return at
}

// unhandledWalk follows a kernel's code, at link-time addresses, from where a CPU
// begins.
type unhandledWalk struct {
	*piece
	found    map[guest.GVA]bool  // the functions, by start
	known    map[uint64]bool     // by called function: whether the CPU has a handler after the call
	replaced map[uint64][]uint64 // possible targets of places that the kernel patches
	left     int                 // instructions
}

// hasHandler follows all paths from at until they return, or have a handler, and
// reports whether any has one. Patched places continue both ways. Paths continue
// after an indirect jump: so does the first code, to its link-time address. They end
// with the function, because the code after a function that does not return is
// another one.
func (w *unhandledWalk) hasHandler(at uint64, depth int) (has bool) {
	if has, ok := w.known[at]; ok {
		return has
	}
	w.known[at] = false
	if in, _ := w.Find(w.slidAddr(at)); depth > maxUnhandledDepth || slices.ContainsFunc(never, func(p string) bool { return guest.Glob(p, in.Name) }) {
		return false
	}
	seen, paths := map[uint64]bool{}, []uint64{at}
	for len(paths) > 0 {
		a := paths[len(paths)-1]
		paths = paths[:len(paths)-1]
		in, ok := w.Find(w.slidAddr(a))
		for ok && w.slidAddr(a)-in.Addr < guest.GVA(in.Size) && !seen[a] && w.left > 0 {
			i, known := w.decode(a)
			if !known {
				break
			}
			seen[a], w.found[in.Addr] = true, true
			w.left--
			paths = append(paths, w.replaced[a]...)
			to, leads := w.target(&i, a)
			switch c := i.Class(); {
			case !leads:
				ok = c != x86.ClassRet && c != x86.ClassIRet && c != x86.ClassUndefined
			case c == x86.ClassCall || c == x86.ClassCallInd:
				ok = !w.hasHandler(to, depth+1)
				has = has || !ok
			default:
				if handled, known := w.known[to]; known {
					has = has || handled
				} else {
					paths = append(paths, to)
				}
				ok = c != x86.ClassJump
			}
			a += uint64(i.Len)
		}
	}
	w.known[at] = has
	return has
}

// decode returns the instruction at a.
func (w *unhandledWalk) decode(a uint64) (i x86.Inst, ok bool) {
	s := w.k.mem.PartAt(a)
	if s == nil || !w.k.isText(a) {
		return i, false
	}
	i, err := x86.Decode(s.Data[a-s.Addr:])
	return i, err == nil
}

// target returns where i, which is at a, continues other than after itself: also
// through a pointer at a fixed address, with its initial value (pv_ops,
// initial_code).
func (w *unhandledWalk) target(i *x86.Inst, a uint64) (to uint64, ok bool) {
	if c := i.Class(); c != x86.ClassCallInd && c != x86.ClassJumpInd {
		return i.Target(a)
	}
	m, ok := i.Mem()
	if !ok || m.Index != x86.NoReg || m.Segment != x86.SegNone || m.Base != x86.NoReg && !m.RIP {
		return 0, false
	}
	at := uint64(m.Disp)
	if m.RIP {
		at = i.RIPTarget(a)
	}
	b := w.k.mem.Bytes(at, 8)
	if b == nil {
		return 0, false
	}
	to = le64(b)
	return to, w.k.isText(to)
}
