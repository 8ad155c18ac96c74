/*
 * A network card without a wire: every timer tick one segment arrives, in
 * interrupt context, as it would on a real machine.
 */
#include "kernel.h"
#include "selfcheck.h"

u64 tcp_segments[MAX_CPUS]; /* accepted by tcp_v4_rcv */
u64 tcp_bad[MAX_CPUS];      /* dropped for their checksum */

static struct sk_buff rx[MAX_CPUS];

/* Ones' complement sum of n 16-bit words. */
static u32 sum_words(const u16 *p, u32 n, u32 sum)
{
	while (n--)
		sum += *p++;
	return sum;
}

static u16 fold(u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (u16)(sum + (sum >> 16));
}

/* Returns 0, or -EINVAL for a segment whose checksum is wrong. */
PROBED int tcp_v4_rcv(struct sk_buff *skb)
{
	u32 sum = (skb->saddr & 0xffff) + (skb->saddr >> 16) +
		  (skb->daddr & 0xffff) + (skb->daddr >> 16) + skb->len;

	sum = sum_words((const u16 *)skb->data, skb->len / 2u, sum);
	if (fold(sum + skb->check) != 0xffff) {
		tcp_bad[this_cpu()]++;
		return -EINVAL;
	}
	tcp_segments[this_cpu()]++;
	return 0;
}

/*
 * The sender. It knows the checksum without adding up the data: the data is
 * one word and its complement, whose ones' complement sum is 0xffff. Every
 * eighth segment is damaged and has to be dropped.
 */
void net_tick(u32 cpu, u64 seq)
{
	struct sk_buff *skb = &rx[cpu];
	u16 *words = (u16 *)skb->data;
	bool damaged = (seq & 7) == 7;
	int ret;

	skb->saddr = 0x0a000001;
	skb->daddr = 0x0a000002;
	skb->sport = 80;
	skb->dport = (u16)(40000 + cpu);
	skb->seq = (u32)seq;
	skb->len = 8;
	words[0] = (u16)seq;
	words[1] = (u16)~seq;
	words[2] = (u16)(seq >> 16);
	words[3] = (u16)~(seq >> 16);
	skb->check = (u16)~fold(0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 8);
	if (damaged)
		words[0] ^= 0x100;
	ret = tcp_v4_rcv(skb);
	if (ret != (damaged ? -EINVAL : 0))
		selfcheck_fail(CHECK_TCP, (u64)ret, damaged);
}
