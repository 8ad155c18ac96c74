/*
 * From the ELF entry to the first task. vCPU 0 builds what is shared; the
 * others wait for it, so that no initialisation needs a lock.
 */
#include "kernel.h"

struct options options;
struct boot_info boot[MAX_CPUS];
u32 ncpus;

/* Set once by vCPU 0 when shared state is ready. */
static u32 boot_done;

/*
 * Returns the memory of the calling vCPU, if the guest can start on what the
 * loader has given it. Runs on the loader's stack, which no guest profile
 * knows: not to be probed.
 */
SECTION(".entry.text") struct percpu *check_boot_info(const struct boot_info *bi)
{
	u64 need;

	if (!bi || bi->magic != BOOT_MAGIC || bi->size < sizeof(*bi) ||
	    bi->ncpus < 1 || bi->cpu >= bi->ncpus) {
		kprintf("cannot start: no boot-info block at %lx\n", (u64)bi);
		guest_exit(EXIT_BOOT);
	}
	need = (u64)percpu + bi->ncpus * PERCPU_SIZE;
	if (bi->ncpus > MAX_CPUS || need > bi->ram_bytes) {
		while (bi->cpu) /* vCPU 0 tells */
			__asm__ volatile("cli; hlt");
		kprintf("cannot start: %u vCPUs (at most %u) with %lu KiB of memory (at least %lu)\n",
			bi->ncpus, MAX_CPUS, bi->ram_bytes >> 10, need >> 10);
		guest_exit(EXIT_BOOT);
	}
	return &percpu[bi->cpu];
}

/* Everything that a vCPU does for itself; ends in its idle task. */
static void NORETURN start_cpu(const struct boot_info *bi)
{
	u32 cpu = bi->cpu;

	boot[cpu] = *bi;
	cpu_init(cpu);
	sched_init_cpu(cpu);
	if (cpu == 0)
		task_create(0, (u64)call_service, 0, "gp_call");
	workload_start(cpu);
	cpu_idle();
}

void NORETURN start_kernel(const struct boot_info *bi)
{
	ncpus = bi->ncpus;
	kprintf("guestprobe built-in guest: %u vCPUs, %lu MiB\n", ncpus,
		bi->ram_bytes >> 20);
	exec_lo[0] = bi->kexec_lo;
	exec_size[0] = bi->kexec_hi - bi->kexec_lo;
	exec_lo[1] = bi->uexec_lo;
	exec_size[1] = bi->uexec_hi - bi->uexec_lo;
	parse_cmdline(bi->cmdline, bi->cmdline_len);
	idt_init();
	mm_init();
	__atomic_store_n(&boot_done, 1, __ATOMIC_RELEASE);
	start_cpu(bi);
}

void NORETURN start_secondary(const struct boot_info *bi)
{
	while (!__atomic_load_n(&boot_done, __ATOMIC_ACQUIRE))
		cpu_relax();
	start_cpu(bi);
}
