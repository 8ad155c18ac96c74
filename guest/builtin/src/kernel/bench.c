/* Loops for benchmarks of kernel code, started through the call service. */
#include "kernel.h"

static u64 rdtsc(void)
{
	u32 lo, hi;

	__asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi)::"memory");
	return (u64)hi << 32 | lo;
}

/* What to put a probe on when only the probe is to be measured. */
PROBED u64 bench_target(u64 a, u64 b)
{
	return a + b;
}

/* Calls fn(a, b) n times and returns the TSC ticks it took. fn 0 is bench_target. */
PROBED u64 bench_calls(u64 (*fn)(u64, u64), u64 n, u64 a, u64 b)
{
	u64 start = rdtsc();

	if (!fn)
		fn = bench_target;
	while (n--)
		fn(a, b);
	return rdtsc() - start;
}
