/*
 * Mirror functions: the host runs one in place of the probed function, with the
 * registers and the stack of the call. Each ends in jprobe_return, where the
 * host takes over again; nothing in the guest calls them. They overwrite their
 * arguments, on the stack too, which the probed function must not notice.
 */
#include "kernel.h"

void jprobe_return(void) NORETURN;

u64 jprobe_calls[4];   /* of the mirrors below, in their order */
u64 jprobe_args[4][8]; /* of the last call */

static void note_call(u32 which, const u64 *args, u32 n)
{
	u32 i;

	for (i = 0; i < n; i++)
		jprobe_args[which][i] = args[i];
	__atomic_add_fetch(&jprobe_calls[which], 1, __ATOMIC_RELAXED);
}

PROBED long jdo_fork(u64 clone_flags, u64 fn, u64 arg, const char *comm,
		     u64 stack_size, s32 *parent_tid)
{
	u64 args[] = { clone_flags, fn, arg, (u64)comm, stack_size,
		       (u64)parent_tid };

	note_call(0, args, ARRAY_SIZE(args));
	jprobe_return();
}

PROBED long jvfs_read(int fd, char *buf, u64 count, u64 pos)
{
	u64 args[] = { (u64)fd, (u64)buf, count, pos };

	note_call(1, args, ARRAY_SIZE(args));
	jprobe_return();
}

PROBED int jtcp_v4_rcv(struct sk_buff *skb)
{
	u64 args[] = { (u64)skb, skb->seq, skb->len, skb->check };

	note_call(2, args, ARRAY_SIZE(args));
	jprobe_return();
}

PROBED u64 jmany_args(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, volatile u64 g,
		      volatile u64 h)
{
	u64 args[] = { a, b, c, d, e, f, g, h };

	note_call(3, args, ARRAY_SIZE(args));
	g = ~g;
	h = ~h;
	jprobe_return();
}
