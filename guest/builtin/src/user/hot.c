/*
 * The functions that probes of user code are measured on. user_hot is small
 * and called in a tight loop; at CPL3 it runs at native speed on every host.
 */
#include "user.h"

u64 user_hot_calls[MAX_CPUS]; /* calls that user_main has made */

PROBED u64 user_hot(u64 a, u64 b)
{
	u64 v = a * 31 + b;

	return v ^ v >> 7;
}

/* Fletcher's sum over bytes, both halves in one word. */
PROBED u64 user_checksum(const u8 *p, u64 n)
{
	u64 s = 1, t = 0;

	while (n--) {
		s += *p++;
		t += s;
	}
	return t << 32 | (s & 0xffffffff);
}

/* A leaf that keeps its temporaries below RSP, where no probe may write. */
PROBED u64 user_red_zone(u64 a, u64 b)
{
	volatile u64 cells[12];
	u64 i, sum = 0;

	for (i = 0; i < 12; i++)
		cells[i] = a + i * b;
	for (i = 0; i < 12; i++)
		sum += cells[i];
	return sum;
}
