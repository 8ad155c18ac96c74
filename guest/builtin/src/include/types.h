/*
 * Integer types, attributes and the few macros that every file needs.
 * Shared by C and assembly: what only C can read is under __ASSEMBLER__.
 */
#ifndef GP_TYPES_H
#define GP_TYPES_H

#ifndef __ASSEMBLER__

/*
 * The user program is position independent only to reach its own data by RIP;
 * nothing can preempt its symbols, so no address needs a GOT.
 */
#ifdef GP_USER
#pragma GCC visibility push(protected)
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef signed int s32;
typedef signed long s64;
typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)

/*
 * A function that somebody may want to probe by name: no inlining, no clones,
 * and every argument really passed, so that the System V ABI describes it.
 */
#define PROBED __attribute__((noipa))

#define NORETURN __attribute__((noreturn))
#define SECTION(name) __attribute__((section(name)))
#define ALIGNED(n) __attribute__((aligned(n)))

/* Code that runs between a trap and the host's answer to it. */
#define NOINSTR SECTION(".noinstr.text") __attribute__((noinline))

/* Lists fn in the section that names what must never be probed. */
#define NOKPROBE_SYMBOL(fn) \
	static const void *const nokprobe_##fn \
		__attribute__((used, section("_kprobe_blacklist"))) = fn

#define OFFSETOF(type, field) __builtin_offsetof(type, field)
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile __typeof__(x) *)&(x) = (v))

#define barrier() __asm__ volatile("" ::: "memory")

#endif /* !__ASSEMBLER__ */

/* As many as the boot contract has. Arrays with an element per vCPU are small; struct percpu is not. */
#define MAX_CPUS 64

#define USER_TASKS 3 /* per vCPU: user_main, user_sse_main, user_bench_main */

#define PAGE_SIZE 4096

#endif
