/*
 * The second user task: SSE2, so that the context switch has vector registers
 * to keep. Its numbers are small integers, for which doubles are exact.
 */
#include "user.h"
#include "selfcheck.h"
#include "syscall.h"

#define VECTOR_LEN 32

PROBED double user_dot(const double *a, const double *b, u64 n)
{
	double sum = 0;
	u64 i;

	for (i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* The same dot product in doubles and in integers; returns the latter. */
PROBED u64 user_sse(u64 seed)
{
	double a[VECTOR_LEN], b[VECTOR_LEN];
	u64 i, want = 0, got;

	for (i = 0; i < VECTOR_LEN; i++) {
		u64 x = (seed + i * 7) & 0xffff, y = ((seed >> 5) + i * 3) & 0xffff;

		a[i] = (double)(s64)x;
		b[i] = (double)(s64)y;
		want += x * y;
	}
	got = (u64)(s64)user_dot(a, b, VECTOR_LEN);
	if (got != want)
		user_selfcheck_fail(CHECK_SSE | CHECK_USER, got, want);
	return got;
}

/*
 * Calls user_hot where it is, and where the second address space has it again.
 * The code reaches its data by RIP, so it does not care.
 */
static void user_alias_call(u64 seed)
{
	u64 (*alias)(u64, u64) =
		(u64(*)(u64, u64))((u64)user_hot + USER_ALIAS_OFFSET);
	u64 got = alias(seed, 1), want = user_hot(seed, 1);

	if (got != want)
		user_selfcheck_fail(CHECK_HOT | CHECK_USER, got, want);
}

/* This task runs in the second address space. */
void user_sse_main(u64 cpu, u64 flags)
{
	u64 round, changed;

	for (round = cpu;; round++) {
		changed = user_sse_pattern(20000);
		if (changed)
			user_selfcheck_fail(CHECK_SSE | CHECK_USER, changed, 0);
		user_sse(round * 12345);
		if (flags & USER_ALIAS)
			user_alias_call(round);
		user_syscall(SYS_SLEEP, 1, 0, 0, 0);
	}
}
