/*
 * The timer interrupt: the host injects the vector, and nothing is to be
 * acknowledged.
 */
#include "kernel.h"

volatile u64 jiffies;        /* ticks of vCPU 0 */
u64 cpu_ticks[MAX_CPUS];     /* ticks of each vCPU */

PROBED void do_timer(u32 cpu)
{
	cpu_ticks[cpu]++;
	if (cpu == 0)
		jiffies++;
}

PROBED void timer_interrupt(struct trap_frame *f)
{
	u32 cpu = this_cpu();

	(void)f;
	do_timer(cpu);
	if (!options.idle)
		net_tick(cpu, cpu_ticks[cpu]);
	sched_tick(cpu);
	preempt();
}
