/*
 * A preemptive round-robin scheduler. Each vCPU has its own queue, which only
 * that vCPU touches, with interrupts off: no locks. The running task is not in
 * the queue, and neither is the idle task.
 */
#include "kernel.h"

struct runqueue {
	struct task *head, *tail; /* runnable, in turn */
	struct task *sleepers;
	struct task idle;
	bool need_resched;
};

static struct runqueue runqueues[MAX_CPUS];

PROBED void sched_enqueue(struct task *t)
{
	struct runqueue *rq = &runqueues[t->cpu];

	t->next = NULL;
	if (rq->head)
		rq->tail->next = t;
	else
		rq->head = t;
	rq->tail = t;
}

static struct task *dequeue(struct runqueue *rq)
{
	struct task *t = rq->head;

	if (t)
		rq->head = t->next;
	return t;
}

void sched_wake(struct task *t)
{
	if (t->state != TASK_SLEEPING && t->state != TASK_BLOCKED)
		return;
	t->state = TASK_RUNNING;
	sched_enqueue(t);
	runqueues[t->cpu].need_resched = true;
}

static void unlink(struct task **list, struct task *t)
{
	while (*list && *list != t)
		list = &(*list)->next;
	if (*list)
		*list = t->next;
}

/* Takes a task that is not running out of the queue or the sleepers. */
void sched_remove(struct task *t)
{
	struct runqueue *rq = &runqueues[t->cpu];
	struct task *last;

	unlink(&rq->sleepers, t);
	unlink(&rq->head, t);
	for (last = rq->head; last && last->next; last = last->next)
		;
	rq->tail = last;
}

/* FXSAVE works at CPL0 on every host that was measured; XSAVE does not. */
static void fpu_switch(struct task *prev, struct task *next)
{
	if (prev->fpu)
		__asm__ volatile("fxsave64 (%0)" ::"r"(prev->fpu) : "memory");
	if (next->fpu)
		__asm__ volatile("fxrstor64 (%0)" ::"r"(next->fpu) : "memory");
}

/*
 * Runs on next's stack, and returns to where next left. What it returns is the
 * task that ran before, for finish_task_switch.
 */
PROBED struct task *__switch_to(struct task *prev, struct task *next)
{
	tss[next->cpu].rsp[0] = next->stack_top;
	mm_switch(prev, next);
	fpu_switch(prev, next);
	next->switches++;
	return prev;
}

/*
 * A task that has exited is given back only when nothing runs on its stack. That
 * is then no task's any more, which the guest profile shows.
 */
PROBED void finish_task_switch(struct task *prev)
{
	if (prev->state == TASK_ZOMBIE || prev->state == TASK_DEAD)
		stack_retire(prev->stack_top);
	if (prev->state == TASK_DEAD)
		prev->state = TASK_FREE;
}

PROBED void schedule(void)
{
	u64 flags = irq_save();
	struct task *prev = current, *next;
	struct runqueue *rq = &runqueues[prev->cpu];

	rq->need_resched = false;
	if (prev->state == TASK_RUNNING && prev != &rq->idle)
		sched_enqueue(prev);
	next = dequeue(rq);
	if (!next)
		next = &rq->idle;
	if (next != prev)
		finish_task_switch(__switch_to_asm(prev, next));
	irq_restore(flags);
}

/* Sleeps for some timer ticks; without a timer it only lets others run. */
PROBED void schedule_ticks(u64 ticks)
{
	struct task *t = current;
	struct runqueue *rq = &runqueues[t->cpu];
	u64 flags = irq_save();

	if (boot[t->cpu].tick_us) {
		t->wake = cpu_ticks[t->cpu] + ticks;
		t->state = TASK_SLEEPING;
		t->next = rq->sleepers;
		rq->sleepers = t;
	}
	schedule();
	irq_restore(flags);
}

/* Timer interrupt: wakes sleepers whose time has come, ends the time slice. */
PROBED void sched_tick(u32 cpu)
{
	struct runqueue *rq = &runqueues[cpu];
	struct task **link = &rq->sleepers, *t;

	while ((t = *link)) {
		if ((s64)(cpu_ticks[cpu] - t->wake) < 0) {
			link = &t->next;
			continue;
		}
		*link = t->next;
		sched_wake(t);
	}
	rq->need_resched = true;
}

/* At the end of an interrupt. */
PROBED void preempt(void)
{
	if (runqueues[this_cpu()].need_resched)
		schedule();
}

/* The idle task is whoever called start_cpu, on the stack of entry.S. */
void sched_init_cpu(u32 cpu)
{
	struct task *idle = &runqueues[cpu].idle;

	idle->stack_top = (u64)percpu[cpu].idle_stack + STACK_SIZE - 16;
	idle->cpu = cpu;
	idle->state = TASK_RUNNING;
	str_copy(idle->comm, "idle", TASK_COMM_LEN);
	stack_init((u64)percpu[cpu].idle_stack, idle);
	tss[cpu].rsp[0] = idle->stack_top;
	/* C code runs on the stack of #DF, and asks which vCPU this is. */
	stack_init(tss[cpu].ist[IST_DF - 1] - STACK_SIZE, idle);
}

PROBED void NORETURN cpu_idle(void)
{
	u32 cpu = this_cpu();

	for (;;) {
		irq_disable();
		if (runqueues[cpu].head) {
			schedule();
			continue;
		}
		/*
		 * The interrupt that ends hlt cannot come between sti and hlt
		 * (SDM Vol. 2, STI). Without a timer only polling is left.
		 */
		if (boot[cpu].tick_us)
			__asm__ volatile("sti; hlt");
		else
			__asm__ volatile("sti; pause");
	}
}
