/*
 * Making and ending tasks. Slots and stacks are a pool per vCPU.
 */
#include "kernel.h"

static u32 next_pid[MAX_CPUS];

/* What __switch_to_asm pops, from the lowest address. */
struct switch_frame {
	u64 r15, r14, r13, r12, rbx, rbp, rip;
};

/* Writes what current and the guest profile find at the end of a stack. */
void stack_init(u64 stack, const struct task *t)
{
	struct stack_info *info = (struct stack_info *)stack;

	info->task = (struct task *)t;
	info->cpu = t->cpu;
	info->pid = t->pid;
	info->tgid = t->tgid;
	memcpy(info->comm, t->comm, sizeof(info->comm));
	info->magic = STACK_MAGIC;
}

/* The task of the stack that holds the address is gone, and will never run on it. */
void stack_retire(u64 address)
{
	stack_info(address)->magic = 0;
}

static struct task *task_alloc(u32 cpu)
{
	struct task *t = NULL;
	u64 flags = irq_save();
	u32 i;

	for (i = 0; i < TASKS_PER_CPU; i++) {
		if (percpu[cpu].tasks[i].state == TASK_FREE) {
			t = &percpu[cpu].tasks[i];
			memset(t, 0, sizeof(*t));
			t->state = TASK_BLOCKED;
			t->cpu = cpu;
			/* 16 bytes stay free: see the walk in panic.c. */
			t->stack_top = (u64)percpu[cpu].kstacks[i] + STACK_SIZE - 16;
			/* Per vCPU, so that pids do not depend on the others. */
			t->pid = 100 + cpu * 10000 + next_pid[cpu]++ % 9000;
			t->tgid = t->pid;
			break;
		}
	}
	irq_restore(flags);
	return t;
}

/* A kernel task on this vCPU that calls fn(arg) and then exits. */
struct task *task_create(u64 flags, u64 fn, u64 arg, const char *comm)
{
	struct task *t = task_alloc(this_cpu());
	struct switch_frame *f;
	u64 irq;

	if (!t)
		return NULL;
	str_copy(t->comm, comm, TASK_COMM_LEN);
	stack_init((u64)stack_info(t->stack_top), t);
	t->flags = flags;
	t->parent = current;
	t->fn = fn;
	t->arg = arg;
	f = (struct switch_frame *)(t->stack_top - 8) - 1;
	memset(f, 0, sizeof(*f));
	f->rbx = fn;
	f->r12 = arg;
	f->rip = (u64)ret_from_fork;
	t->sp = (u64)f;
	irq = irq_save();
	sched_wake(t);
	irq_restore(irq);
	return t;
}

/*
 * Starts a task and returns its pid, which is also stored at parent_tid, or
 * -EAGAIN when the pool is used up, -EINVAL for a stack larger than there is.
 */
PROBED long do_fork(u64 clone_flags, u64 fn, u64 arg, const char *comm,
		    u64 stack_size, s32 *parent_tid)
{
	struct task *t;

	if (stack_size > STACK_SIZE)
		return -EINVAL;
	t = task_create(clone_flags, fn, arg, comm);
	if (!t)
		return -EAGAIN;
	if (parent_tid)
		*parent_tid = (s32)t->pid;
	return t->pid;
}

static struct task *find_child(long pid)
{
	struct task *t = percpu[this_cpu()].tasks;
	u32 i;

	for (i = 0; i < TASKS_PER_CPU; i++, t++)
		if (t->state != TASK_FREE && t->pid == pid &&
		    t->parent == current && !(t->flags & TASK_DETACHED))
			return t;
	return NULL;
}

/* Waits for a child of the caller to exit, and returns its exit code. */
PROBED long do_wait(long pid)
{
	struct task *child = find_child(pid);
	u64 flags;
	long code;

	if (!child)
		return -ECHILD;
	flags = irq_save();
	while (child->state != TASK_ZOMBIE) {
		current->state = TASK_BLOCKED;
		schedule();
	}
	code = child->exit_code;
	child->state = TASK_FREE;
	irq_restore(flags);
	return code;
}

/*
 * Ends a child of the caller wherever it stands: of the functions that it is in,
 * none returns.
 */
PROBED long do_kill(long pid)
{
	struct task *child = find_child(pid);
	u64 flags;

	if (!child)
		return -ECHILD;
	flags = irq_save();
	sched_remove(child);
	stack_retire(child->stack_top);
	child->state = TASK_FREE;
	irq_restore(flags);
	return 0;
}

PROBED void NORETURN do_exit(long code)
{
	struct task *t = current;

	irq_disable();
	t->exit_code = code;
	if (t->user_stack)
		stack_retire(t->user_stack);
	if (t->flags & TASK_DETACHED) {
		t->state = TASK_DEAD;
	} else {
		t->state = TASK_ZOMBIE;
		if (t->parent->state == TASK_BLOCKED)
			sched_wake(t->parent);
	}
	schedule();
	panic("a dead task was scheduled", NULL);
}

/* Sleeps until it is killed. */
PROBED u64 sleep_forever(u64 unused)
{
	(void)unused;
	for (;;)
		schedule_ticks(1ul << 40);
}

/* The child of the workload: some work, a preemption point, an exit code. */
PROBED u64 fork_child(u64 seed)
{
	u64 v = seed * 2654435761u;

	schedule();
	if (seed & 1)
		do_exit((long)(v >> 8 & 0xff));
	return v >> 8 & 0xff;
}
