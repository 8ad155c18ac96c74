/*
 * Tasks. A host that has the task pointer of a struct stack_info may read the
 * fields up to `cpu`; the assertions below keep their places.
 */
#ifndef GP_TASK_H
#define GP_TASK_H

#include "abi.h"

#define TASK_FREE 0     /* slot unused */
#define TASK_RUNNING 1  /* running, or in its vCPU's run queue */
#define TASK_SLEEPING 2 /* until the tick `wake` */
#define TASK_BLOCKED 3  /* until a child exits */
#define TASK_ZOMBIE 4   /* exited, exit_code not fetched yet */
#define TASK_DEAD 5     /* exited and nobody waits: freed at the next switch */

#define TASK_USER 1     /* has a CPL3 part */
#define TASK_FPU 2      /* uses SSE: its state is switched */
#define TASK_DETACHED 4 /* nobody waits for it */

#define TASK_COMM_LEN 16
#define TASKS_PER_CPU 12

/* sizeof(struct percpu): STACK_SIZE times its stacks, and one for the rest. */
#define PERCPU_SIZE ((IDLE_STACKS + IST_STACKS + TASKS_PER_CPU + 1) * STACK_SIZE)
#define IDLE_STACKS 1
#define IST_STACKS 4

#ifndef __ASSEMBLER__

struct task {
	u64 sp;                   /* +0  saved kernel RSP, while not running */
	u64 stack_top;            /* +8  end of the kernel stack, TSS.RSP0 */
	u32 pid;                  /* +16 */
	u32 tgid;                 /* +20 */
	char comm[TASK_COMM_LEN]; /* +24 NUL-padded */
	u32 state;                /* +40 TASK_RUNNING ... */
	u32 cpu;                  /* +44 tasks never change their vCPU */
	u64 flags;                /* TASK_USER ... */
	struct task *next;        /* run queue or sleeper list */
	struct task *parent;
	u64 wake;
	u64 fn, arg;              /* what a new kernel task calls */
	s64 exit_code;
	u64 switches;
	u64 recover_sp;           /* call.c: where a fault unwinds to, or 0 */
	void *fpu;                /* 512-byte FXSAVE area, or NULL */
	u64 cr3;                  /* second_cr3, or 0 for the first space */
	u64 user_stack;           /* an address in it, or 0 */
};

_Static_assert(OFFSETOF(struct task, stack_top) == 8, "task layout");
_Static_assert(OFFSETOF(struct task, pid) == 16, "task layout");
_Static_assert(OFFSETOF(struct task, tgid) == 20, "task layout");
_Static_assert(OFFSETOF(struct task, comm) == 24, "task layout");
_Static_assert(OFFSETOF(struct task, state) == 40, "task layout");
_Static_assert(OFFSETOF(struct task, cpu) == 44, "task layout");

/*
 * Memory of one vCPU: in the identity-mapped RAM behind the image, which is
 * zeros at entry, so that only the vCPUs that there are need any.
 */
struct percpu {
	u8 idle_stack[STACK_SIZE];
	u8 ist_stacks[IST_STACKS][STACK_SIZE];
	u8 kstacks[TASKS_PER_CPU][STACK_SIZE];
	struct task tasks[TASKS_PER_CPU];
	u8 fpu[USER_TASKS][512] ALIGNED(64);
} ALIGNED(STACK_SIZE);

_Static_assert(sizeof(struct percpu) == PERCPU_SIZE, "entry.S counts on it");

extern struct percpu *const percpu; /* entry.S; by vCPU number */

static inline struct stack_info *stack_info(u64 address)
{
	return (struct stack_info *)(address & ~(u64)(STACK_SIZE - 1));
}

static inline struct stack_info *current_info(void)
{
	u64 rsp;

	__asm__("movq %%rsp, %0" : "=r"(rsp));
	return stack_info(rsp);
}

#define current (current_info()->task)

static inline u32 this_cpu(void)
{
	return current_info()->cpu;
}

/* sched.c */
void sched_init_cpu(u32 cpu);
void schedule(void);
void schedule_ticks(u64 ticks);
void sched_tick(u32 cpu);
void sched_wake(struct task *t);
void sched_enqueue(struct task *t);
void sched_remove(struct task *t);
void preempt(void);
void NORETURN cpu_idle(void);

/* fork.c */
void stack_init(u64 stack, const struct task *t);
void stack_retire(u64 address);
struct task *task_create(u64 flags, u64 fn, u64 arg, const char *comm);
long do_fork(u64 clone_flags, u64 fn, u64 arg, const char *comm,
	     u64 stack_size, s32 *parent_tid);
long do_wait(long pid);
long do_kill(long pid);
void do_exit(long code) NORETURN;

/* mm.c */
void mm_init(void);
void mm_switch(struct task *prev, struct task *next);
extern u64 second_cr3;

/* switch.S */
struct task *__switch_to_asm(struct task *prev, struct task *next);
void ret_from_fork(void);
void enter_user(u64 rip, u64 rsp, u64 cpu, u64 flags) NORETURN;

#endif /* !__ASSEMBLER__ */

#endif
