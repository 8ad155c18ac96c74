/*
 * The ends of the guest: exit, panic, and the crashes that the option crash=
 * asks for.
 */
#include "kernel.h"
#include "selfcheck.h"

static u32 panics;

void NORETURN guest_exit(u32 code)
{
	outl(code, PORT_EXIT);
	for (;;)
		__asm__ volatile("cli; hlt");
}

static void print_frame(const struct trap_frame *f)
{
	kprintf("rip %016lx rflags %08lx cs %02lx ss %02lx rsp %016lx\n", f->rip,
		f->rflags, f->cs, f->ss, f->rsp);
	kprintf("rax %016lx rbx %016lx rcx %016lx rdx %016lx\n", f->rax, f->rbx,
		f->rcx, f->rdx);
	kprintf("rsi %016lx rdi %016lx rbp %016lx r8  %016lx\n", f->rsi, f->rdi,
		f->rbp, f->r8);
	kprintf("r9  %016lx r10 %016lx r11 %016lx r12 %016lx\n", f->r9, f->r10,
		f->r11, f->r12);
	kprintf("r13 %016lx r14 %016lx r15 %016lx cr2 %016lx\n", f->r13, f->r14,
		f->r15, read_cr2());
}

/* Follows saved frame pointers while they stay in one kernel stack. */
static void print_backtrace(u64 rbp)
{
	u64 end = (u64)stack_info(rbp) + STACK_SIZE;
	u32 n;

	for (n = 0; n < 12; n++) {
		const u64 *frame = (const u64 *)rbp;

		if (rbp < (u64)percpu || rbp >= (u64)&percpu[ncpus] || rbp & 7 ||
		    rbp + 16 > end)
			return;
		kprintf("  called from %016lx\n", frame[1]);
		if (frame[0] <= rbp)
			return;
		rbp = frame[0];
	}
}

PROBED void NORETURN panic(const char *why, struct trap_frame *f)
{
	const struct task *t;
	u32 cpu;

	irq_disable();
	/* The first vCPU that panics is the one worth hearing. */
	if (__atomic_fetch_add(&panics, 1, __ATOMIC_SEQ_CST))
		for (;;)
			__asm__ volatile("cli; hlt");
	console_panic_mode();
	/* By TSS.RSP0, because #DF runs on a stack that is no task's. */
	cpu = this_cpu();
	t = stack_info(tss[cpu].rsp[0] - 1)->task;
	kprintf("panic: %s, cpu %u, task %u (%s)\n", why, cpu, t->pid, t->comm);
	if (f) {
		kprintf("vector %lu error %lx\n", f->vector, f->error);
		print_frame(f);
		print_backtrace(f->rbp);
	}
	guest_exit(EXIT_PANIC);
}

/* An IDT without entries: the first exception becomes a triple fault. */
static void triple_fault(void)
{
	struct {
		u16 limit;
		u64 base;
	} __attribute__((packed)) none = { 0, 0 };

	__asm__ volatile("lidt %0; ud2" ::"m"(none));
}

PROBED void crash_on_purpose(const char *how)
{
	if (str_eq(how, "triple"))
		triple_fault();
	else if (str_eq(how, "panic"))
		panic("crash=panic", NULL);
	else if (str_eq(how, "pf"))
		*(volatile u64 *)0xffff800000000000 = 1;
	else if (str_eq(how, "gp"))
		*(volatile u64 *)0x8000000000000000 = 1;
	else if (str_eq(how, "ud"))
		__asm__ volatile("ud2");
	else if (str_eq(how, "df"))
		__asm__ volatile("mov %0, %%rsp; push %%rax" ::"r"(
			0xffff800000001000));
	else if (str_eq(how, "hang"))
		for (;;)
			__asm__ volatile("cli; pause");
	else if (str_eq(how, "hlt"))
		for (;;)
			__asm__ volatile("cli; hlt");
	else if (str_eq(how, "selfcheck"))
		selfcheck_fail(CHECK_ON_PURPOSE, 1, 2);
	else if (str_eq(how, "exit"))
		guest_exit(3);
}
