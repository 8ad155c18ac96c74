/*
 * Locks for whoever comes first. With more vCPUs than host CPUs the next one in
 * a queue is seldom one that runs: with tickets, 64 vCPUs on 2 host CPUs do
 * little else than wait for each other's threads. Critical sections are a few
 * dozen instructions, and none of them calls something worth probing but the lock
 * functions themselves.
 */
#include "kernel.h"

PROBED u64 spin_lock_irqsave(struct spinlock *l)
{
	u64 flags = irq_save();

	while (__atomic_exchange_n(&l->locked, 1, __ATOMIC_ACQUIRE))
		while (READ_ONCE(l->locked))
			cpu_relax();
	return flags;
}

PROBED void spin_unlock_irqrestore(struct spinlock *l, u64 flags)
{
	__atomic_store_n(&l->locked, 0, __ATOMIC_RELEASE);
	irq_restore(flags);
}
