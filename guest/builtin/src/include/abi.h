/*
 * What this guest and its host agree on: ports, the boot-info block, the trap
 * frames at the ports, the call and bench mailboxes, and what a guest profile
 * reads (current task, pid, comm).
 */
#ifndef GP_ABI_H
#define GP_ABI_H

#include "types.h"

#define PORT_CONSOLE 0xe9    /* out of one byte: console */
#define PORT_EXIT 0xf4       /* out: the guest ends, the value is its exit code */
#define PORT_BREAKPOINT 0xf3 /* RSP at {RIP,CS,RFLAGS,RSP,SS} of a #BP */
#define PORT_DEBUG 0xf1      /* the same of a #DB */
#define PORT_FAULT 0xf6      /* RSP at {vector,error,RIP,CS,RFLAGS,RSP,SS} */
#define PORT_REPORT 0xf7     /* outl: a self-check failed, EAX is its code */

#define BOOT_MAGIC 0x31424f5250545347 /* "GSTPROB1" */
#define CALL_MAGIC 0x314c4c414350472e
#define STACK_MAGIC 0x314b434154535047 /* "GPSTACK1" */

#define PROFILE_MAGIC 0x31464f5250504728 /* "(GPPROF1" */

#define STACK_SIZE 8192

/* Exit codes of this guest, other than the 0 of a finished workload. */
#define EXIT_FAILED 1  /* rounds= done, but a self-check failed */
#define EXIT_PANIC 101 /* panic() */
#define EXIT_BOOT 102  /* the guest cannot start on what the boot-info block says */

/* Selectors. The loader's GDT has the same descriptors in the same places. */
#define SEL_KCODE 0x08
#define SEL_KDATA 0x10
#define SEL_UDATA 0x1b
#define SEL_UCODE 0x23
#define SEL_TSS 0x28

#define VECTOR_DB 1
#define VECTOR_NMI 2
#define VECTOR_BP 3
#define VECTOR_DF 8
#define VECTOR_TIMER 0x20
#define VECTOR_SYSCALL 0x80

#ifndef __ASSEMBLER__

/* rdi at the ELF entry points to one of these per vCPU. */
struct boot_info {
	u64 magic;
	u64 size; /* 128 */
	u64 ram_bytes;
	u32 cpu;
	u32 ncpus;
	const char *cmdline; /* NUL-terminated */
	u64 cmdline_len;
	u64 kexec_lo, kexec_hi; /* engine's executable area for CPL0 text */
	u64 uexec_lo, uexec_hi; /* the same for CPL3 text */
	u64 stack_top;
	u64 tick_us; /* 0: no timer */
	u64 timer_vector;
	u64 flags;
	u64 reserved[2];
};

_Static_assert(sizeof(struct boot_info) == 128, "boot info");
_Static_assert(OFFSETOF(struct boot_info, tick_us) == 88, "boot info tick");

/*
 * The call service (call.c): the host fills fn and args and increments
 * request; a kernel task calls fn, stores ret and fault, and then sets done =
 * request. fault is 0 when fn returned; CALL_FAULT + the vector when an
 * exception ended it (ret is ~0); CALL_EXITED when it ended its task (ret is the
 * exit code).
 */
#define CALL_FAULT 0x100
#define CALL_EXITED 0x200

struct call_mailbox {
	u64 magic;
	u64 request;
	u64 done;
	u64 fn;
	u64 args[6];
	u64 ret;
	u64 fault;
};

/*
 * At the lowest address of every stack, kernel and user alike; stacks are
 * STACK_SIZE bytes and aligned to that. So the guest profile finds who runs
 * from the interrupted RSP alone, at CPL0 and at CPL3, inside the guest and
 * from the host: info = rsp & -STACK_SIZE, valid if the magic is there. The magic
 * goes when the task does, before another one can have the stack: what the
 * task was in the middle of will never return.
 *
 * GS is no way to find it: on one of the measured hosts a guest with two vCPUs
 * and CPL3 code finds a GS base of 0, or the other vCPU's, sooner or later.
 */
struct stack_info {
	u64 magic;           /* +0  STACK_MAGIC */
	struct task *task;   /* +8  kernel address of the task */
	u32 cpu;             /* +16 tasks never change their vCPU */
	u32 pid;             /* +20 */
	u32 tgid;            /* +24 */
	u32 reserved;        /* +28 */
	char comm[16];       /* +32 NUL-padded */
};

_Static_assert(OFFSETOF(struct stack_info, task) == 8, "guest profile");
_Static_assert(OFFSETOF(struct stack_info, cpu) == 16, "guest profile");
_Static_assert(OFFSETOF(struct stack_info, comm) == 32, "guest profile");

/*
 * The data symbol gp_profile: where the fields of struct stack_info are, for
 * whoever finds it from an interrupted RSP. The host validates it.
 */
#define PROFILE_ONE_MAPPING 1 /* user text and the engine's memory are at the same addresses in every address space, and nowhere else */
#define PROFILE_KERNEL_ONCE 2 /* kernel text is executed at its image's addresses only */

struct guest_profile {
	u64 magic;       /* PROFILE_MAGIC */
	u64 stack_mask;  /* info = rsp & stack_mask */
	u64 stack_magic; /* u64 at info + magic_off */
	u64 flags;
	s32 magic_off;
	s32 cpu_off;  /* u32 */
	s32 pid_off;  /* u32, of the thread */
	s32 tgid_off; /* u32 */
	s32 comm_off; /* 16 bytes */
	s32 reserved;
};

_Static_assert(sizeof(struct guest_profile) == 56, "guest profile");
_Static_assert(OFFSETOF(struct guest_profile, comm_off) == 48, "guest profile");

/*
 * The bench mailbox of one vCPU, in user memory: with the option `bench` a
 * CPL3 task waits for request != done, calls fn(a, b) n times in a tight loop,
 * and stores the TSC ticks that took before it sets done = request.
 */
struct bench_mailbox {
	u64 request;
	u64 done;
	u64 fn; /* 0: user_hot */
	u64 n;
	u64 a, b;
	u64 ticks;
	u64 ret; /* of the last call */
};

#endif /* !__ASSEMBLER__ */

#endif
