/*
 * A second address space, for probes that must tell them apart: the same kernel
 * and the same program at the same addresses, and with the option `alias` the
 * program once more, 512 GiB higher, where the first space has nothing.
 */
#include "kernel.h"
#include "../user/user.h"

#define KERNEL_VMA 0xffffffff80000000
#define PTE_ADDRESS 0x000ffffffffff000
#define PML4_INDEX(va) ((va) >> 39 & 511)

u64 second_cr3;

/* Says what is true from the first user task on. */
struct guest_profile gp_profile = {
	.magic = PROFILE_MAGIC,
	.stack_mask = ~(u64)(STACK_SIZE - 1),
	.stack_magic = STACK_MAGIC,
	/* PROFILE_ONE_MAPPING is set once mm_init knows what the address spaces look like. */
	.flags = PROFILE_KERNEL_ONCE,
	.magic_off = OFFSETOF(struct stack_info, magic),
	.cpu_off = OFFSETOF(struct stack_info, cpu),
	.pid_off = OFFSETOF(struct stack_info, pid),
	.tgid_off = OFFSETOF(struct stack_info, tgid),
	.comm_off = OFFSETOF(struct stack_info, comm),
};

static u64 second_pml4[512] ALIGNED(PAGE_SIZE);
static u64 first_cr3;

static u64 read_cr3(void)
{
	u64 v;

	__asm__ volatile("mov %%cr3, %0" : "=r"(v));
	return v;
}

static void write_cr3(u64 v)
{
	__asm__ volatile("mov %0, %%cr3" ::"r"(v) : "memory");
}

/* The loader's page tables are in identity-mapped memory. */
void mm_init(void)
{
	const u64 *first;

	first_cr3 = read_cr3();
	first = (const u64 *)(first_cr3 & PTE_ADDRESS);
	memcpy(second_pml4, first, sizeof(second_pml4));
	if (options.alias) {
		second_pml4[PML4_INDEX(user_stacks_base + USER_ALIAS_OFFSET)] =
			first[PML4_INDEX(user_stacks_base)];
	} else {
		gp_profile.flags |= PROFILE_ONE_MAPPING;
	}
	second_cr3 = (u64)second_pml4 - KERNEL_VMA;
}

/* task.cr3 is 0 for the first space, which kernel tasks use too. */
void mm_switch(struct task *prev, struct task *next)
{
	u64 from = prev->cr3 ? prev->cr3 : first_cr3;
	u64 to = next->cr3 ? next->cr3 : first_cr3;

	if (from != to)
		write_cr3(to);
}
