/*
 * A second kernel task per vCPU, so that two tasks are in the same functions at
 * once, one of them asleep or preempted; and variables to watch.
 */
#include "kernel.h"
#include "selfcheck.h"
#include "shapes.h"

/* Written by every kernel round of vCPU 0, each with the bits of the seed. */
u8 watch_u8;
u16 watch_u16;
u32 watch_u32;
u64 watch_u64;

u64 kworker_rounds[MAX_CPUS];

PROBED void work_variables(u64 seed)
{
	u64 sum;

	WRITE_ONCE(watch_u8, (u8)seed);
	WRITE_ONCE(watch_u16, (u16)seed);
	WRITE_ONCE(watch_u32, (u32)seed);
	WRITE_ONCE(watch_u64, seed);
	sum = (u64)READ_ONCE(watch_u8) + READ_ONCE(watch_u16) +
	      READ_ONCE(watch_u32) + READ_ONCE(watch_u64);
	if (sum != (seed & 0xff) + (seed & 0xffff) + (seed & 0xffffffff) + seed)
		selfcheck_fail(CHECK_VARIABLES, sum, seed);
}

/* Sleeps in the middle: its activations outlive those of other tasks. */
PROBED u64 sleep_and_add(u64 a, u64 b)
{
	u64 sum = fib_recursive(a & 3);

	schedule_ticks(1);
	return sum + fib_recursive(b & 3);
}

void kworker(u64 unused)
{
	static const u64 fib[] = { 0, 1, 1, 2 };
	u32 cpu = this_cpu();
	u64 round;

	(void)unused;
	for (round = 1;; round++) {
		u64 got = sleep_and_add(round, round >> 2);
		u64 want = fib[round & 3] + fib[round >> 2 & 3];

		kworker_rounds[cpu] = round;
		if (got != want)
			selfcheck_fail(CHECK_KWORKER, got, want);
	}
}
