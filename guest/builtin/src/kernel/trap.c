/*
 * Exceptions, after the stubs of traps.S and the host have had their say. The
 * dispatcher is .noinstr.text; the handlers proper may be probed.
 */
#include "kernel.h"

/* The engine's executable areas, [0] for CPL0 text, [1] for CPL3 text. */
u64 exec_lo[2], exec_size[2];

u64 foreign_bp_count, foreign_db_count, nmi_count, spurious_irqs;
u64 exceptions_fixed;

static const char *const names[32] = {
	"divide error", "debug", "NMI", "breakpoint", "overflow",
	"bound range", "invalid opcode", "no FPU", "double fault",
	"coprocessor overrun", "invalid TSS", "segment not present",
	"stack fault", "general protection", "page fault", "vector 15",
	"x87 error", "alignment check", "machine check", "SIMD error",
	"virtualization", "control protection",
};

static const char *exception_name(u64 vector)
{
	const char *n = vector < ARRAY_SIZE(names) ? names[vector] : NULL;

	return n ? n : "reserved exception";
}

/* A fault at an address, #PF. */
PROBED bool do_page_fault(struct trap_frame *f, u64 error, u64 address)
{
	(void)error;
	(void)address;
	return fixup_exception(f);
}

/* Every other exception with a fix-up. */
PROBED bool do_trap(struct trap_frame *f, u64 vector)
{
	(void)vector;
	return fixup_exception(f);
}

/* The address of the program's one `int $0x80`: user/start.S. */
extern const u64 user_syscall_insn;

/*
 * Where CPL0 is emulated, a software interrupt at CPL3 raises #UD instead of
 * its vector. The instruction is known by its address and not by its bytes,
 * which a probe may have replaced.
 */
static bool refused_syscall(const struct trap_frame *f)
{
	return f->rip == user_syscall_insn && (f->cs & 3) == 3 &&
	       (f->vector == 6 || f->vector == 13);
}

NOINSTR void exc_dispatch(struct trap_frame *f)
{
	bool fixed;

	if (refused_syscall(f)) {
		f->rip += 2;
		do_syscall(f);
		return;
	}
	fixed = f->vector == 14 ? do_page_fault(f, f->error, read_cr2()) :
				       do_trap(f, f->vector);

	if (fixed) {
		__atomic_add_fetch(&exceptions_fixed, 1, __ATOMIC_RELAXED);
		return;
	}
	if (f->vector != VECTOR_DF && current->recover_sp &&
	    (f->cs & 3) == 0) {
		kprintf("call: %s at %016lx\n", exception_name(f->vector),
			f->rip);
		call_abort(f->vector);
	}
	panic(exception_name(f->vector), f);
}
NOKPROBE_SYMBOL(exc_dispatch);
