/*
 * Ticket locks. With more vCPUs than host CPUs a waiter may own the next
 * ticket while its thread does not run; critical sections are therefore a few
 * dozen instructions, and none of them calls something worth probing but the
 * lock functions themselves.
 */
#include "kernel.h"

PROBED u64 spin_lock_irqsave(struct spinlock *l)
{
	u64 flags = irq_save();
	u32 ticket = __atomic_fetch_add(&l->next, 1, __ATOMIC_ACQUIRE);

	while (__atomic_load_n(&l->owner, __ATOMIC_ACQUIRE) != ticket)
		cpu_relax();
	return flags;
}

PROBED void spin_unlock_irqrestore(struct spinlock *l, u64 flags)
{
	__atomic_store_n(&l->owner, l->owner + 1, __ATOMIC_RELEASE);
	irq_restore(flags);
}
