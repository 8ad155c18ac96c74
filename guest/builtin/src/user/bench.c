/* With the option `bench`: calls on request, timed inside the guest. */
#include "user.h"
#include "syscall.h"

struct bench_mailbox user_bench_mailbox[MAX_CPUS];

static u64 rdtsc(void)
{
	u32 lo, hi;

	/* No earlier instruction may still be under way (SDM Vol. 2, RDTSC). */
	__asm__ volatile("lfence; rdtsc" : "=a"(lo), "=d"(hi)::"memory");
	return (u64)hi << 32 | lo;
}

/* Calls fn(a, b) n times, and stores the TSC ticks of all calls together. */
PROBED u64 user_bench_calls(u64 (*fn)(u64, u64), u64 n, u64 a, u64 b, u64 *ticks)
{
	u64 start = rdtsc(), ret = 0;

	while (n--)
		ret = fn(a, b);
	*ticks = rdtsc() - start;
	return ret;
}

void user_bench_main(u64 cpu)
{
	struct bench_mailbox *m = &user_bench_mailbox[cpu];

	for (;;) {
		u64 request = READ_ONCE(m->request), ticks = 0;
		u64 (*fn)(u64, u64) = user_hot;

		if (request == m->done) {
			user_syscall(SYS_SLEEP, 1, 0, 0, 0);
			continue;
		}
		if (m->fn)
			fn = (u64 (*)(u64, u64))m->fn;
		m->ret = user_bench_calls(fn, m->n, m->a, m->b, &ticks);
		m->ticks = ticks;
		WRITE_ONCE(m->done, request);
	}
}
