/* System calls, as syscall.h numbers them. */
#include "syscall.h"
#include "kernel.h"

typedef long (*syscall_fn)(u64, u64, u64, u64, u64, u64);

u64 syscalls[MAX_CPUS];

PROBED static long sys_read(u64 fd, u64 buf, u64 count, u64 pos)
{
	return vfs_read((int)fd, (char *)buf, count, pos);
}

PROBED static long sys_write(u64 fd, u64 buf, u64 count)
{
	return vfs_write((int)fd, (const char *)buf, count);
}

PROBED static long sys_sched_yield(void)
{
	schedule();
	return 0;
}

PROBED static long sys_sleep(u64 ticks)
{
	schedule_ticks(ticks);
	return 0;
}

PROBED static long sys_fork(u64 seed)
{
	s32 tid = 0;
	long pid = do_fork(0, (u64)fork_child, seed, "child", STACK_SIZE, &tid);

	if (pid < 0)
		return pid;
	return do_wait(tid);
}

PROBED static long sys_getpid(void)
{
	return current->tgid;
}

PROBED static long sys_report(u64 code, u64 got, u64 want)
{
	selfcheck_fail((u32)code, got, want);
	return 0;
}

/* One user task per vCPU counts its rounds: the one that runs user_main. */
PROBED static long sys_round(u64 sum)
{
	u32 cpu = this_cpu();

	user_rounds[cpu]++;
	if (options.rounds && user_rounds[cpu] == options.rounds) {
		workload_finished(cpu, true, sum);
		return 1;
	}
	if (!options.busy)
		schedule_ticks(1);
	return 0;
}

PROBED static long sys_exit(u64 code)
{
	do_exit((long)code);
}

/* Casts to one shape: the ABI passes what a callee does not look at. */
#define ENTRY(nr, fn) [nr] = (syscall_fn)(void (*)(void))(fn)

static const syscall_fn sys_call_table[NR_SYSCALLS] = {
	ENTRY(SYS_READ, sys_read),   ENTRY(SYS_WRITE, sys_write),
	ENTRY(SYS_OPEN, sys_open),   ENTRY(SYS_YIELD, sys_sched_yield),
	ENTRY(SYS_SLEEP, sys_sleep), ENTRY(SYS_FORK, sys_fork),
	ENTRY(SYS_GETPID, sys_getpid), ENTRY(SYS_REPORT, sys_report),
	ENTRY(SYS_ROUND, sys_round), ENTRY(SYS_EXIT, sys_exit),
};

PROBED void do_syscall(struct trap_frame *f)
{
	syscalls[this_cpu()]++;
	irq_enable();
	if (f->rax < NR_SYSCALLS)
		f->rax = (u64)sys_call_table[f->rax](f->rdi, f->rsi, f->rdx,
						     f->rcx, f->r8, f->r9);
	else
		f->rax = (u64)-ENOSYS;
	irq_disable();
}
