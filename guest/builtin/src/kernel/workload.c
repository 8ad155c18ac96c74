/*
 * The workload: on every vCPU a kernel task that goes through all functions
 * worth probing, round after round, and two user tasks. Every result is
 * checked; with rounds=N the guest ends after N rounds of each, with a line per
 * vCPU that depends on nothing but N.
 */
#include "kernel.h"
#include "privileged.h"
#include "sections.h"
#include "selfcheck.h"
#include "shapes.h"
#include "../user/user.h"

u64 workload_rounds[MAX_CPUS]; /* kernel rounds done */
u64 user_rounds[MAX_CPUS];     /* user rounds done */

extern const u64 user_entries[]; /* user/start.S */

static u64 sums[MAX_CPUS][2];
static u32 unfinished[MAX_CPUS]; /* workloads of a vCPU still running */
static u32 finished_cpus;      /* counts up: a vCPU may be done before another has begun */

/*
 * Two counters that vCPUs change under a lock, and that add up to 0. Eight share
 * them: when the host takes the processor from one that holds a lock, those who
 * wait for it use up their time with nothing.
 */
#define SHARING 8

struct shared {
	struct spinlock lock;
	u64 counter, shadow;
} ALIGNED(64);

static struct shared shared[(MAX_CPUS + SHARING - 1) / SHARING];

static void expect(u32 code, u64 got, u64 want)
{
	if (got != want)
		selfcheck_fail(code, got, want);
}

PROBED u64 work_files(u64 seed)
{
	char buf[24];
	long fd = sys_open("/proc/version", 0, 0);
	long n = vfs_read((int)fd, buf, 10 + (seed & 7), seed & 3);

	expect(CHECK_OPEN, (u64)fd, 5);
	expect(CHECK_READ, (u64)n, 10 + (seed & 7));
	expect(CHECK_READ, (u64)buf[0], (u64) "gues"[seed & 3]);
	switch (seed & 3) {
	case 0:
		expect(CHECK_OPEN, (u64)sys_open("/etc/passwd", 0, 0),
		       (u64)-ENOENT);
		break;
	case 1:
		expect(CHECK_READ, (u64)vfs_read(99, buf, 1, 0), (u64)-EBADF);
		break;
	case 2:
		expect(CHECK_READ,
		       (u64)vfs_read(3, (char *)0xffff800000000000, 4, 0),
		       (u64)-EFAULT);
		break;
	default:
		expect(CHECK_OPEN, (u64)sys_open("/etc/motd", 64, 0),
		       (u64)-EINVAL);
	}
	return (u64)n;
}

PROBED u64 work_fork(u64 seed)
{
	s32 tid = 0;
	long pid = do_fork(0, (u64)fork_child, seed, "kchild", 4096, &tid);
	u64 code = (u64)do_wait(pid);

	expect(CHECK_FORK, (u64)tid, (u64)pid);
	expect(CHECK_FORK, code, seed * 2654435761u >> 8 & 0xff);
	return code;
}

PROBED void work_kill(u64 seed)
{
	long pid = do_fork(0, (u64)sleep_forever, seed, "sleeper", 0, NULL);

	schedule();
	expect(CHECK_KILL, (u64)do_kill(pid), 0);
	expect(CHECK_KILL, (u64)do_kill(pid), (u64)-ECHILD);
}

PROBED void work_faults(u64 seed)
{
	u64 cell = seed;

	switch (seed % 6) {
	case 0:
		expect(CHECK_FAULT, (u64)fault_load((void *)0xffff800000000000),
		       (u64)-EFAULT);
		break;
	case 1:
		expect(CHECK_FAULT, (u64)fault_gp(), (u64)-EFAULT);
		break;
	case 2:
		expect(CHECK_FAULT, (u64)fault_divide(seed, 0), (u64)-EFAULT);
		break;
	case 3:
		expect(CHECK_FAULT, (u64)fault_ud(), (u64)-EFAULT);
		break;
	case 4: /* text is read-only: CR0.WP */
		expect(CHECK_FAULT, (u64)fault_store((void *)fault_store),
		       (u64)-EFAULT);
		break;
	default:
		expect(CHECK_FAULT, (u64)fault_load(&cell), seed);
		expect(CHECK_FAULT, (u64)fault_divide(seed, 3), seed / 3);
		expect(CHECK_FAULT, (u64)fault_store(&cell), 0);
	}
}

PROBED void work_privileged(u64 seed)
{
	expect(CHECK_FLAGS, cli_sti(seed), 0x400);
	expect(CHECK_FLAGS, iretq_here(seed), seed + 0x10);
	expect(CHECK_FLAGS, far_return(seed), seed + 0x20);
	expect(CHECK_FLAGS, control_registers(seed), seed);
	expect(CHECK_SECTIONS,
	       kprobes_text_fn(seed) + noinstr_text_fn(seed) +
		       entry_text_fn(seed) + blacklisted_fn(seed),
	       4 * seed + 10);
	if (options.int3)
		expect(CHECK_INT3, own_int3(seed), seed + 3);
}

PROBED void work_locked(u64 seed)
{
	struct shared *s = &shared[this_cpu() / SHARING];
	u64 flags = spin_lock_irqsave(&s->lock), a, b;

	s->counter += seed;
	s->shadow -= seed;
	a = s->counter;
	b = s->shadow;
	spin_unlock_irqrestore(&s->lock, flags);
	expect(CHECK_LOCK, a + b, 0);
}

PROBED u64 workload_round(u64 seed, u64 sum)
{
	sum = sum << 9 | sum >> 55;
	run_shape_checks(seed, &sum);
	sum += work_files(seed);
	work_faults(seed);
	work_privileged(seed);
	work_locked(seed);
	if ((seed & 1) == 0)
		sum += work_fork(seed);
	if ((seed & 7) == 5)
		work_kill(seed);
	if (this_cpu() == 0)
		work_variables(seed);
	return sum;
}

/* The kernel task of the workload. */
static void workload(u64 cpu)
{
	u64 sum = cpu, round;

	for (round = 1;; round++) {
		sum = workload_round(cpu * 1000003 + round, sum);
		workload_rounds[cpu] = round;
		if (round == 1 && !options.quiet)
			kprintf("cpu %lu: first round done\n", cpu);
		if (round == options.rounds)
			break;
		if (options.busy)
			schedule();
		else
			schedule_ticks(1);
	}
	workload_finished((u32)cpu, false, sum);
}

/* A vCPU's kernel or user part is done; the last one of all ends the guest. */
void workload_finished(u32 cpu, bool user, u64 sum)
{
	sums[cpu][user] = sum;
	if (__atomic_sub_fetch(&unfinished[cpu], 1, __ATOMIC_SEQ_CST))
		return;
	kprintf("result cpu=%u sum=%016lx\n", cpu,
		sums[cpu][0] ^ (sums[cpu][1] << 1 | sums[cpu][1] >> 63));
	if (__atomic_add_fetch(&finished_cpus, 1, __ATOMIC_SEQ_CST) != ncpus)
		return;
	kprintf("workload finished, %lu self-check failures\n",
		selfcheck_failures);
	guest_exit(selfcheck_failures ? EXIT_FAILED : 0);
}

/* Becomes the user task number `which` of this vCPU. */
static void user_task(u64 which)
{
	u32 cpu = this_cpu();
	u64 stack = user_stacks_base + (cpu * USER_TASKS + which) * STACK_SIZE;

	stack_init(stack, current);
	current->user_stack = stack;
	/* As if called: the ABI wants RSP + 8 to be a multiple of 16. */
	enter_user(user_entries[which], stack + STACK_SIZE - 8, cpu,
		   (options.int3 ? USER_INT3 : 0) |
			   (options.alias ? USER_ALIAS : 0) |
			   (str_eq(options.crash, "user") ? USER_CRASH : 0));
}

static void user_task_create(u32 cpu, u64 which, const char *comm)
{
	struct task *t;
	u8 *fpu = percpu[cpu].fpu[which];
	u64 flags = irq_save();

	/* FCW and MXCSR as after a reset (SDM Vol. 1, 8.1.5 and 10.2.3). */
	*(u16 *)fpu = 0x37f;
	*(u32 *)(fpu + 24) = 0x1f80;
	t = task_create(TASK_USER | TASK_FPU | TASK_DETACHED, (u64)user_task,
			which, comm);
	if (t) {
		t->fpu = fpu;
		/* user_sse_main lives in an address space of its own. */
		t->cr3 = which == 1 ? second_cr3 : 0;
	}
	irq_restore(flags);
}

void workload_start(u32 cpu)
{
	if (cpu == 0 && options.crash[0])
		crash_on_purpose(options.crash);
	if (options.bench)
		user_task_create(cpu, 2, "bench");
	if (options.idle || options.bench)
		return;
	unfinished[cpu] = options.nouser ? 1 : 2;
	task_create(TASK_DETACHED, (u64)workload, cpu, "workload");
	task_create(TASK_DETACHED, (u64)kworker, 0, "kworker");
	if (options.nouser)
		return;
	user_task_create(cpu, 0, "user");
	user_task_create(cpu, 1, "sse");
}
