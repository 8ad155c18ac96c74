/*
 * Descriptor tables. Each vCPU has its own GDT and TSS; the IDT is shared.
 */
#include "kernel.h"

/* exc_stubs has 16 bytes per vector: see traps.S. */
extern u8 exc_stubs[], gp_breakpoint[], gp_debug[], nmi_entry[];

struct tss tss[MAX_CPUS] ALIGNED(128);

static u64 gdt[MAX_CPUS][8] ALIGNED(64);
static u64 idt[256][2] ALIGNED(PAGE_SIZE);

struct table_register {
	u16 limit;
	u64 base;
} __attribute__((packed));

#define GATE_INTERRUPT 0x8e /* present, DPL 0, 64-bit interrupt gate */
#define GATE_USER 0xee      /* the same with DPL 3 */

/* SDM Vol. 3, figure 6-8: 64-bit IDT gate descriptors. */
static void set_gate(u32 vector, const void *stub, u32 ist, u32 type)
{
	u64 a = (u64)stub;

	idt[vector][0] = (a & 0xffff) | (u64)SEL_KCODE << 16 | (u64)ist << 32 |
			 (u64)type << 40 | (a >> 16 & 0xffff) << 48;
	idt[vector][1] = a >> 32;
}

void idt_init(void)
{
	u64 lo, hi;
	u32 v;

	/*
	 * The stubs lie 16 bytes apart in one 4 KiB-aligned block, so the low
	 * half of the gate counts up without a carry. This loop is a tenth of
	 * the boot time where CPL0 is emulated; keep it short.
	 */
	set_gate(0, exc_stubs, 0, GATE_INTERRUPT);
	lo = idt[0][0];
	hi = idt[0][1];
	for (v = 0; v < 256; v++, lo += 16) {
		idt[v][0] = lo;
		idt[v][1] = hi;
	}
	set_gate(VECTOR_DB, gp_debug, IST_DB, GATE_USER);
	set_gate(VECTOR_BP, gp_breakpoint, IST_BP, GATE_USER);
	set_gate(VECTOR_NMI, nmi_entry, IST_NMI, GATE_INTERRUPT);
	set_gate(VECTOR_DF, exc_stubs + 16 * VECTOR_DF, IST_DF, GATE_INTERRUPT);
	set_gate(VECTOR_SYSCALL, exc_stubs + 16 * VECTOR_SYSCALL, 0, GATE_USER);
}

/* Loads this vCPU's tables; stacks for RSP0 come with the first task. */
void cpu_init(u32 cpu)
{
	struct table_register r;
	u64 t = (u64)&tss[cpu], *g = gdt[cpu];
	u32 i;

	g[SEL_KCODE / 8] = 0x00af9b000000ffff;
	g[SEL_KDATA / 8] = 0x00cf93000000ffff;
	g[SEL_UDATA / 8] = 0x00cff3000000ffff;
	g[SEL_UCODE / 8] = 0x00affb000000ffff;
	/* 64-bit available TSS (SDM Vol. 3, figure 8-4). */
	g[SEL_TSS / 8] = (sizeof(struct tss) - 1) | (t & 0xffffff) << 16 |
			 0x89ul << 40 | (t >> 24 & 0xff) << 56;
	g[SEL_TSS / 8 + 1] = t >> 32;

	for (i = 0; i < IST_STACKS; i++)
		tss[cpu].ist[i] = (u64)percpu[cpu].ist_stacks[i] + STACK_SIZE;
	tss[cpu].iomap = sizeof(struct tss); /* no port for CPL3 */

	r.limit = sizeof(gdt[cpu]) - 1;
	r.base = (u64)g;
	__asm__ volatile("lgdt %0" ::"m"(r));
	r.limit = sizeof(idt) - 1;
	r.base = (u64)idt;
	__asm__ volatile("lidt %0" ::"m"(r));
	__asm__ volatile("ltr %w0" ::"r"(SEL_TSS));
	__asm__ volatile("mov %w0, %%ds; mov %w0, %%es; mov %w0, %%ss" ::"r"(
		SEL_KDATA));
	/* Null FS and GS survive iretq to CPL3 as they are; nothing uses them. */
	__asm__ volatile("mov %w0, %%fs; mov %w0, %%gs" ::"r"(0));
}
