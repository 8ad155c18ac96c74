/* Declarations of the user program. */
#ifndef GP_USER_H
#define GP_USER_H

#include "types.h"

/* Flags that the kernel passes to each task of the program. */
#define USER_INT3 1  /* execute an int3 of its own now and then */
#define USER_ALIAS 2 /* call through USER_ALIAS_OFFSET */
#define USER_CRASH 4 /* fault without a fix-up */

/* In the second address space the program appears a second time, up here. */
#define USER_ALIAS_OFFSET (1ul << 39)

#ifndef __ASSEMBLER__

#include "abi.h"

/* user/start.S */
s64 user_syscall(u64 nr, u64 a, u64 b, u64 c, u64 d);

/* user/hot.c */
u64 user_hot(u64 a, u64 b);
u64 user_checksum(const u8 *p, u64 n);
u64 user_red_zone(u64 a, u64 b);

/* user/fault.S */
s64 user_fault_load(const void *p);
s64 user_fault_divide(u64 a, u64 b);
s64 user_fault_privileged(void);
u64 user_own_int3(u64 a);

/* user/sse.S, user/vector.c */
u64 user_sse_pattern(u64 rounds);
double user_dot(const double *a, const double *b, u64 n);
u64 user_sse(u64 seed);
void user_sse_main(u64 cpu, u64 flags);

/* user/main.c, user/bench.c */
void user_main(u64 cpu, u64 flags);
void user_bench_main(u64 cpu);
void user_selfcheck_fail(u32 code, u64 got, u64 want);
u64 user_run_shape_checks(u64 seed, u64 *sum);

extern struct bench_mailbox user_bench_mailbox[MAX_CPUS];
extern u64 user_hot_calls[MAX_CPUS];

#endif /* !__ASSEMBLER__ */

#endif
