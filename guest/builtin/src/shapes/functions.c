/* What compilers make of ordinary C. */
#include "shapes.h"

u64 SHAPE(shape_calls); /* calls of call_operation, all vCPUs */

PROBED u64 SHAPE(fib_recursive)(u64 n)
{
	if (n < 2)
		return n;
	return SHAPE(fib_recursive)(n - 1) + SHAPE(fib_recursive)(n - 2);
}

PROBED u64 SHAPE(ackermann)(u64 m, u64 n)
{
	if (m == 0)
		return n + 1;
	if (n == 0)
		return SHAPE(ackermann)(m - 1, 1);
	return SHAPE(ackermann)(m - 1, SHAPE(ackermann)(m, n - 1));
}

PROBED static u64 tail_target(u64 a, u64 b)
{
	return a * 3 + b;
}

/* Ends in a jump: its caller is the only one that sees tail_target return. */
PROBED u64 SHAPE(tail_caller)(u64 a, u64 b)
{
	return tail_target(a ^ b, a & b);
}

/* A switch over so many values that it becomes a jump table. */
PROBED u64 SHAPE(dispatch_op)(u64 op, u64 a, u64 b)
{
	switch (op) {
	case 0: return a + b;
	case 1: return a - b;
	case 2: return a & b;
	case 3: return a | b;
	case 4: return a ^ b;
	case 5: return a * b;
	case 6: return a << (b & 63);
	case 7: return a >> (b & 63);
	case 8: return (a < b) + 2 * b;
	case 9: return ~a + 3 * b;
	default: return 0;
	}
}

/* Two of its arguments are on the stack. */
PROBED u64 SHAPE(many_args)(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g,
			    u64 h)
{
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h;
}

/* Arguments narrower than their registers. */
PROBED u64 SHAPE(narrow_args)(u8 a, u16 b, u32 c, signed char d)
{
	return (u64)a + b + c + (u64)(s64)d;
}

PROBED static u64 op_add(u64 a, u64 b)
{
	return a + b;
}

PROBED static u64 op_sub(u64 a, u64 b)
{
	return a - b;
}

PROBED static u64 op_mix(u64 a, u64 b)
{
	return (a << 7) + (b ^ a);
}

static u64 (*const operations[])(u64, u64) = { op_add, op_sub, op_mix };

PROBED u64 SHAPE(call_operation)(u64 which, u64 a, u64 b)
{
	__atomic_add_fetch(&SHAPE(shape_calls), 1, __ATOMIC_RELAXED);
	return operations[which](a, b) + 1;
}

/* An inlined function: it has no symbol, but DWARF knows its two places. */
static inline __attribute__((always_inline)) u64 rotate_mix(u64 v, u32 by)
{
	return (v << by | v >> (64 - by)) * 0x9e3779b97f4a7c15;
}

PROBED u64 SHAPE(inlined_twice)(u64 a, u64 b)
{
	return rotate_mix(a, 13) ^ rotate_mix(b, 29);
}

/* A frame of more than 128 bytes, written and read back. */
PROBED u64 SHAPE(big_frame)(u64 a)
{
	volatile u64 cells[40];

	cells[0] = a;
	cells[20] = a + 1;
	cells[39] = cells[0] * cells[20];
	return cells[39] + cells[20];
}

/* Leaves depth + 1 activations of itself without a return, given a buffer. */
PROBED static u64 jump_out(const u64 *buffer, u64 depth, u64 value)
{
	if (!buffer)
		return value;
	if (depth == 0)
		SHAPE(long_jump)(buffer, value);
	return jump_out(buffer, depth - 1, value + 1) + 1;
}

/* a + 7 for even a, by a long jump; a + 1 for odd a, without. */
PROBED u64 SHAPE(escape)(u64 a)
{
	u64 buffer[8], value;
	volatile u64 kept = a;

	value = SHAPE(set_jump)(buffer);
	if (value)
		return value + kept;
	if (kept & 1)
		return kept + 1;
	return jump_out(buffer, 2, 5);
}

PROBED struct pair SHAPE(pair_return)(u64 a, u64 b)
{
	struct pair p = { a + b, a - b };

	return p;
}

/* Sorts 8 words made from seed; returns a hash that depends on their order. */
PROBED u64 SHAPE(sort_words)(u64 seed)
{
	u32 w[8], i, j;
	u64 hash = 0;

	for (i = 0; i < 8; i++) {
		seed = seed * 6364136223846793005 + 1442695040888963407;
		w[i] = (u32)(seed >> 33);
	}
	for (i = 1; i < 8; i++) {
		u32 v = w[i];

		for (j = i; j > 0 && w[j - 1] > v; j--)
			w[j] = w[j - 1];
		w[j] = v;
	}
	for (i = 0; i < 8; i++)
		hash = hash * 31 + w[i];
	return hash;
}
