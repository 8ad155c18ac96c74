/*
 * What the functions in assembly should return, computed in another way.
 * Private to checks.c.
 */
#ifndef GP_REFERENCE_H
#define GP_REFERENCE_H

#include "types.h"

#define FLAG_CF 0x001
#define FLAG_PF 0x004
#define FLAG_AF 0x010
#define FLAG_ZF 0x040
#define FLAG_SF 0x080
#define FLAG_OF 0x800

/* The arithmetic flags of a - b (SDM Vol. 1, 3.4.3.1). */
static u64 sub_flags(u64 a, u64 b)
{
	u64 d = a - b, f = 0, p = d & 0xff;

	if (a < b)
		f |= FLAG_CF;
	p ^= p >> 4;
	p ^= p >> 2;
	p ^= p >> 1;
	if (!(p & 1))
		f |= FLAG_PF;
	if ((a ^ b ^ d) & 0x10)
		f |= FLAG_AF;
	if (d == 0)
		f |= FLAG_ZF;
	if (d >> 63)
		f |= FLAG_SF;
	if (((a ^ b) & (a ^ d)) >> 63)
		f |= FLAG_OF;
	return f;
}

/* The even condition codes, o b e be s p l le, from bit 7 down to bit 0. */
static u32 even_conditions(u64 f)
{
	u32 cf = !!(f & FLAG_CF), zf = !!(f & FLAG_ZF), sf = !!(f & FLAG_SF);
	u32 of = !!(f & FLAG_OF), pf = !!(f & FLAG_PF);

	return of << 7 | cf << 6 | zf << 5 | (cf | zf) << 4 | sf << 3 |
	       pf << 2 | (sf ^ of) << 1 | (zf | (sf ^ of));
}

/* Spreads 8 bits: bit i of v selects on or off for the pair i of the result. */
static u64 spread(u32 v, u64 on, u64 off)
{
	u64 r = 0;
	int i;

	for (i = 7; i >= 0; i--)
		r = r << 2 | (v >> i & 1 ? on : off);
	return r;
}

static u64 ref_flags_chain(u64 a, u64 b)
{
	u64 s = a + b, top;

	s += s < a;
	top = s >> 63;
	s = (s << 1 | 1) - !top;
	return s >> 17 << 1 | (s & 1);
}

static u64 ref_bit_forms(u64 a, u64 b)
{
	u32 by = b & 63;
	u64 v = by ? a << by | a >> (64 - by) : a, r = 0;
	u32 i;

	for (i = 0; i < 8; i++)
		r = r << 8 | (v >> 8 * i & 0xff);
	r = ((r | 1u << 5) & ~(1ul << 9)) ^ 1ul << by;
	r = (r << 7 | a >> 57) | 16;
	r += 63 - (u64)__builtin_clzl(r) - (u64)__builtin_ctzl(r);
	r = r >> 11 | b << 53;
	return (u64)((s64)r >> 3);
}

static u64 ref_mul_div_forms(u64 a, u64 b)
{
	u64 v = a * 31 * (u64)(s64)(s32)a;

	v += (u64)(s64)(signed char)b;
	v -= (unsigned short)a;
	return (u64)(s64)(s32)v;
}

static u64 ref_lock_forms(u64 c, u64 d, u64 a)
{
	u64 old = (-(c + a + 1) | 0x10) ^ 0x80;

	return old + 3 + old + d;
}

static u64 ref_rip_forms(u64 a)
{
	u64 cell = a + 0x11;

	return ((u64)((cell & 0xff) != 0) ^ cell) + cell + 3 * cell;
}

static u64 ref_fib(u64 n)
{
	u64 a = 0, b = 1;

	while (n--) {
		u64 t = a + b;

		a = b;
		b = t;
	}
	return a;
}

#endif
