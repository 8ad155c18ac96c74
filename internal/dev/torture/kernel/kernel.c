#include "kernel.h"

extern u64 vectors[];
extern u8 stacks[], syscalled[];
void enter(struct frame *) __attribute__((noreturn));

struct config tt_config[MAX_TASKS];
u64 tt_tasks;			/* how many */
struct result tt_result[MAX_TASKS];
struct alias tt_alias[MAX_ALIASES];
u64 tt_tracer;			/* TRACER_* */

struct task tasks[MAX_TASKS];
u64 exec_lo, exec_size, kexec_lo, kexec_size;
static u64 ncpus;
static volatile u64 left;	/* vCPUs with something to do */
static int current[MAX_CPUS];	/* task, or -1 */

/* Where the engine learns which vCPU a stack belongs to (docs/guest.md). */
#define STACK 16384UL
#define MAGIC 0x74726f7475726573UL
struct info {
	u64 magic;
	u32 cpu, pid, tgid, unused;
	char comm[16];
};
struct {
	u64 magic, mask, stack_magic, flags;
	u32 magic_off, cpu_off, pid_off, tgid_off, comm_off, zero;
} gp_profile __attribute__((section(".data"), aligned(8))) = {
	0x31464f5250504728UL, -STACK, MAGIC, 3, 0, 8, 12, 16, 24, 0,
};

struct gate { u32 a, b, c, d; };
static struct gate idt[33];
static u64 gdt[MAX_CPUS][8];
static u32 tss[MAX_CPUS][26];
static u64 alias_tables[MAX_ALIASES][3][512] __attribute__((aligned(4096)));
static struct breakpoint breakpoints[MAX_BREAKPOINTS];
static u64 lock;		/* of breakpoints and of what is written to text */

static u32 cpu(void)
{
	u64 sp;
	asm("mov %%rsp, %0" : "=r"(sp));
	return *(u32 *)(sp & -32768UL);
}

/* The entry of the page tables for a page of 4 KiB. RAM is at its own address. */
static u64 *pte(u64 va)
{
	u64 table;
	asm("mov %%cr3, %0" : "=r"(table));
	for (int shift = 39;; shift -= 9) {
		u64 *e = (u64 *)(table & 0xffffffffff000UL) + (va >> shift & 511);
		if (shift == 12)
			return e;
		table = *e;
	}
}

/* Whether a task can reach an address: user code needs the user bit all the way. */
static int reachable(u64 va, u64 need)
{
	u64 table;
	asm("mov %%cr3, %0" : "=r"(table));
	for (int shift = 39;; shift -= 9) {
		table = *((u64 *)(table & 0xffffffffff000UL) + (va >> shift & 511));
		if ((table & need) != need)
			return 0;
		if (shift == 12 || table & 0x80)
			return 1;
	}
}

/* Where text can be written: RAM is at its own address. */
static u8 *writable(u64 va)
{
	u64 table;
	asm("mov %%cr3, %0" : "=r"(table));
	for (int shift = 39;; shift -= 9) {
		table = *((u64 *)(table & 0xffffffffff000UL) + (va >> shift & 511));
		if (shift == 12 || table & 0x80) {
			u64 mask = (1UL << shift) - 1;
			return (u8 *)((table & 0xffffffffff000UL & ~mask) + (va & mask));
		}
	}
}

/* Maps an alias: its tables are our own but for the uppermost, which has an entry
   for the text already. */
static void map(struct alias *a, u64 (*t)[512])
{
	u64 table, flags = 1 | (a->flags & ALIAS_USER);
	u64 *e;
	asm("mov %%cr3, %0" : "=r"(table));
	e = (u64 *)(table & 0xffffffffff000UL) + (a->va >> 39 & 511);
	if (!(*e & 1)) {
		*e = (u64)writable((u64)t[2]) | 7;
	}
	e = (u64 *)(*e & 0xffffffffff000UL) + (a->va >> 30 & 511);
	*e = (u64)writable((u64)t[0]) | 7;
	e = &t[0][a->va >> 21 & 511];
	if (a->flags & ALIAS_LARGE) {
		*e = a->pa | flags | 0x80;
		return;
	}
	*e = (u64)writable((u64)t[1]) | 7;
	for (u64 i = 0; i < a->pages; i++)
		t[1][(a->va >> 12 & 511) + i] = (a->pa + 4096 * i) | flags;
}

static void map_aliases(u64 late)
{
	for (int i = 0; i < MAX_ALIASES; i++)
		if (tt_alias[i].pages && (tt_alias[i].flags & ALIAS_LATE) == late)
			map(&tt_alias[i], alias_tables[i]);
}

static void take(void)
{
	while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
		asm volatile("pause");
}

static void give(void)
{
	__atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

/* Tells the host of text that was written, as docs/guest.md has it, while the lock
   is held: another vCPU's writes come after the host has looked. */
static void written(void)
{
	if (tt_tracer & TRACER_TELLS)
		asm volatile("outb %%al, $0xf9" ::: "memory");
}

static struct breakpoint *breakpoint(u64 addr, int make)
{
	u8 *text = writable(addr);
	for (int i = 0; i < MAX_BREAKPOINTS; i++) {
		if (breakpoints[i].text == text)
			return &breakpoints[i];
		if (!breakpoints[i].text && make) {
			breakpoints[i].text = text;
			return &breakpoints[i];
		}
		if (!breakpoints[i].text)
			return 0;
	}
	return 0;
}

/* A breakpoint at addr: its byte is kept, an int3 written. */
static void plant(u64 addr)
{
	take();
	u8 first = *(volatile u8 *)writable(addr);
	struct breakpoint *b = 0;
	if (!(tt_tracer & TRACER_YIELDS && (first == 0xcc || first == 0xe9)))
		b = breakpoint(addr, 1);
	if (b && b->users++ == 0) {
		b->old = *(volatile u8 *)b->text;
		*(volatile u8 *)b->text = 0xcc;
		written();
	}
	give();
}

/* What was kept goes back. */
static void unplant(struct breakpoint *b, int all)
{
	if (b && b->users && (all || b->users == 1)) {
		*(volatile u8 *)b->text = b->old;
		b->users = 1;
		written();
	}
	if (b && b->users)
		b->users--;
}

/* An int3 of the tracer's own: the instruction goes back, and runs. */
static int trapped(struct frame *f)
{
	struct breakpoint *b;
	take();
	b = breakpoint(f->rip - 1, 0);
	unplant(b, 1);
	give();
	if (b)
		f->rip--;
	return b != 0;
}

/* An instruction of n bytes becomes another one while others may run it: an int3,
   the rest, and then the first byte, as Linux does it. Nothing is read. */
static void poke(u64 addr, u64 code, u64 n)
{
	take();
	struct breakpoint *b = breakpoint(addr, 1);
	if (b) {
		u8 *text = b->text;
		*(volatile u8 *)text = 0xcc;
		written();
		for (u64 i = 1; i < n; i++)
			((volatile u8 *)text)[i] = code >> 8 * i;
		written();
		*(volatile u8 *)text = code;
		written();
	}
	give();
}

static void present(u64 va, int yes)
{
	u64 *e = pte(va);
	*e = yes ? *e | 1 : *e & ~1UL;
	asm volatile("invlpg (%0)" :: "r"(va) : "memory");
}

static void mix(struct result *r, u64 v)
{
	r->hash = (r->hash ^ v) * 0x100000001b3UL;
	r->hash ^= r->hash >> 29;
}

/* Flags that are the program's: CF PF AF ZF SF TF DF OF AC. */
#define FLAGS 0x40dd5UL

static void note(struct result *r, struct frame *f, u64 addr)
{
	u64 *w = (u64 *)f;
	r->exceptions++;
	for (int i = 0; i < 15; i++)
		mix(r, w[i]);
	mix(r, f->vector);
	mix(r, f->rip);
	mix(r, f->rsp);
	mix(r, f->rflags & FLAGS);
	mix(r, addr);
	if (r->exceptions <= LOG) {
		u64 *l = (u64 *)&r->log[r->exceptions - 1];
		l[0] = f->vector;
		l[1] = f->rip;
		l[2] = f->rsp;
		l[3] = f->rflags & FLAGS;
		l[4] = addr;
		l[5] = r->hash;
	}
}

static void copy(void *to, const void *from, u64 n)
{
	asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) :: "memory");
}

/* The next task of this vCPU goes into the frame, or the vCPU idles. */
static void next(struct frame *f)
{
	u32 c = cpu();
	int from = current[c] < 0 ? (int)c : current[c] + (int)ncpus;
	for (int k = 0; k < 2 * MAX_TASKS; k++, from += ncpus) {
		int i = from % (int)(ncpus * ((MAX_TASKS + ncpus - 1) / ncpus));
		if (i < (int)tt_tasks && tt_result[i].state == 0) {
			current[c] = i;
			*f = tasks[i].ctx;
			return;
		}
	}
	current[c] = -1;
	if (__atomic_sub_fetch(&left, 1, __ATOMIC_SEQ_CST) == 0)
		asm volatile("outl %0, $0xf4" :: "a"(0));
	for (;;)
		asm volatile("cli; hlt");
}

/* Services: ud2 and the number of one. */
static int serve(struct frame *f, struct task *t, struct result *r)
{
	u64 a = f->rdi;
	u8 n = *(u8 *)(f->rip + 2);
	f->rip += 3;
	switch (n) {
	case 0:			/* the end */
		r->regs = *f;
		r->state = 1;
		next(f);
		return 1;
	case 1:			/* back from a signal */
		if (t->in_signal) {
			t->in_signal = 0;
			*f = t->interrupted;
		}
		return 1;
	case 2:			/* writes text: RDX bytes of RSI to RDI */
		copy(writable(a), &f->rsi, f->rdx & 7);
		asm volatile("outb %%al, $0xf9" ::: "memory");
		return 1;
	case 3:			/* takes the page at RDI away */
		present(a, 0);
		return 1;
	case 4:			/* lets another task run */
		t->ctx = *f;
		next(f);
		return 1;
	case 5:			/* maps the aliases that are made late */
		take();
		map_aliases(ALIAS_LATE);
		give();
		return 1;
	case 6:			/* the tracer's breakpoint at RDI comes */
		plant(a);
		return 1;
	case 7:			/* and goes */
		take();
		unplant(breakpoint(a, 0), 0);
		give();
		return 1;
	case 8:			/* RDX bytes of RSI become the instruction at RDI */
		poke(a, f->rsi, f->rdx & 7);
		return 1;
	case 9:			/* RSI bytes of text at RDI are read and kept */
		t->kept_at = a;
		t->kept_size = f->rsi & 63;
		if (tt_tracer & TRACER_BACK)
			copy(t->kept, writable(a), t->kept_size);
		return 1;
	case 10:		/* and written back */
		if (tt_tracer & TRACER_BACK && t->kept_at) {
			take();
			copy(writable(t->kept_at), t->kept, t->kept_size);
			written();
			give();
		}
		return 1;
	}
	f->rip -= 3;
	return 0;
}

static void tick(struct frame *f, struct task *t, struct result *r, struct config *c)
{
	r->ticks++;
	if (c->handler && !t->in_signal && r->ticks % c->sig_every == 0) {
		u64 sp = c->handler_rsp ? c->handler_rsp : (f->rsp - 256) & -16UL;
		u64 need = c->kernel ? 1 : 5;
		if (reachable(sp - 1024, need) && reachable(sp - 8, need)) {
			r->signals++;
			t->interrupted = *f;
			t->in_signal = 1;
			f->rip = c->handler;
			f->rsp = sp;
			f->rflags = 0x202;
		}
	}
	t->ctx = *f;
	next(f);
}

void handle(struct frame *f)
{
	u64 addr = 0;
	int i = current[cpu()];
	if (i < 0 || (!(f->cs & 3) && !tt_config[i].kernel)) {
		if (f->vector == 32)
			return;
		asm volatile("outl %0, $0xf4" :: "a"((u32)(0x100 + f->vector)));
	}
	struct task *t = &tasks[i];
	struct result *r = &tt_result[i];
	struct config *c = &tt_config[i];
	if (f->vector == 32) {
		tick(f, t, r, c);
		return;
	}
	if (f->vector == 6 && *(u8 *)f->rip == 0x0f && *(u8 *)(f->rip + 1) == 0x0b && serve(f, t, r))
		return;
	if (f->vector == 3 && trapped(f))
		return;
	if (f->vector == 14 && f->rip == (u64)syscalled) {
		/* A host that emulates kernel code has left the processor at CPL3 there. */
		f->rip = f->rcx;
		f->rflags = f->r11;
		return;
	}
	if (f->vector == 14)
		asm("mov %%cr2, %0" : "=r"(addr));
	note(r, f, addr);
	if (f->vector == 1)
		return;
	if (f->vector == 14 && addr >= c->pager_lo && addr < c->pager_hi && !(f->error & 1)) {
		present(addr, 1);
		return;
	}
	u64 resume = *(u64 *)c->rdi;
	if (resume) {
		f->rip = resume;
		return;
	}
	r->regs = *f;
	r->state = 2;
	next(f);
}

static void prepare(void)
{
	for (u64 i = 0; i < tt_tasks; i++) {
		struct config *c = &tt_config[i];
		struct frame *f = &tasks[i].ctx;
		f->rip = c->rip;
		f->rsp = c->rsp;
		f->rdi = c->rdi;
		f->cs = c->kernel ? 0x08 : 0x23;
		f->ss = c->kernel ? 0x10 : 0x1b;
		f->rflags = 0x202;
		for (int k = 0; k < 3; k++) {
			u64 sp = k == 2 ? c->other_rsp : k ? c->handler_rsp : c->rsp;
			if (!sp)
				continue;
			struct info *in = (struct info *)((sp - 1) & -STACK);
			in->cpu = i % ncpus;
			in->pid = 100 + i;
			in->tgid = 100 + i;
			copy(in->comm, "tortured", 9);
			in->magic = MAGIC;
		}
		for (u64 p = c->pager_lo; p < c->pager_hi; p += 4096)
			present(p, 0);
	}
}

static void msr(u32 n, u64 v)
{
	asm volatile("wrmsr" :: "c"(n), "a"((u32)v), "d"((u32)(v >> 32)));
}

void boot(u32 c, u64 *info)
{
	static volatile u64 ready;
	u8 *base = stacks + c * 32768UL;
	u64 t = (u64)tss[c];

	current[c] = -1;
	gdt[c][1] = 0x00af9b000000ffffUL;
	gdt[c][2] = 0x00cf93000000ffffUL;
	gdt[c][3] = 0x00cff3000000ffffUL;
	gdt[c][4] = 0x00affb000000ffffUL;
	gdt[c][6] = 103 | (t & 0xffffff) << 16 | 0x89UL << 40 | (t >> 24 & 0xff) << 56;
	gdt[c][7] = t >> 32;
	*(u64 *)(t + 4) = (u64)base + 16384;	/* RSP0 */
	*(u64 *)(t + 36) = (u64)base + 24576;	/* IST1 */
	*(u64 *)(t + 44) = (u64)base + 16384;	/* IST2: kernel code may be on any stack */
	*(u32 *)(t + 100) = 104 << 16;
	if (c == 0) {
		ncpus = *(u32 *)((u8 *)info + 28);
		kexec_lo = info[6];
		kexec_size = info[7] - info[6];
		exec_lo = info[8];
		exec_size = info[9] - info[8];
		left = ncpus;
		for (int i = 0; i < 33; i++) {
			u64 a = vectors[i];
			int user = i == 3;
			idt[i].a = 0x08 << 16 | (a & 0xffff);
			idt[i].b = (a & 0xffff0000) | 0x8e00 | user * 0x6000 | (i == 1 || i == 3 ? 1 : 2);
			idt[i].c = a >> 32;
		}
		prepare();
		map_aliases(0);
		ready = 1;
	}
	while (!ready)
		asm volatile("pause");
	struct { unsigned short limit; u64 base; } __attribute__((packed)) d;
	d.limit = sizeof gdt[c] - 1;
	d.base = (u64)gdt[c];
	asm volatile("lgdt %0" :: "m"(d));
	d.limit = sizeof idt - 1;
	d.base = (u64)idt;
	asm volatile("lidt %0" :: "m"(d));
	asm volatile("ltr %w0" :: "r"(0x30));
	u64 cr;
	asm volatile("mov %%cr0, %0; or %1, %0; mov %0, %%cr0" : "=&r"(cr) : "r"(0x40000UL));	/* AM */
	/* syscall: EFER.SCE; it goes back at once, with what it has left in RCX and R11 */
	asm volatile("rdmsr; or $1, %%eax; wrmsr" :: "c"(0xc0000080) : "eax", "edx");
	msr(0xc0000081, 0x0013000800000000UL);
	msr(0xc0000082, (u64)syscalled);
	msr(0xc0000084, 0x47700);
	struct frame f;
	next(&f);
	enter(&f);
}
