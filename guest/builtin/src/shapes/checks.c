/*
 * Calls every shape with arguments from a seed, compares what it returns with
 * another computation, and folds the results into a sum that depends on
 * nothing but the seed: not on time, not on other vCPUs, not on probes.
 */
#include "shapes.h"
#include "reference.h"
#include "selfcheck.h"

#ifdef GP_USER
void user_selfcheck_fail(u32 code, u64 got, u64 want);
#define CHECK_BASE (CHECK_SHAPES | CHECK_USER)
#else
void selfcheck_fail(u32 code, u64 got, u64 want);
#define CHECK_BASE CHECK_SHAPES
#endif

/* A check returns what it got and stores what it should have got. */
typedef u64 (*check_fn)(u64 a, u64 b, u64 *want);

static u64 check_tiny(u64 a, u64 b, u64 *want)
{
	u64 n = (a & 7) + 1;

	SHAPE(tiny_ret)();
	*want = a + n * (n + 1) + n * (n - 1) / 2 + 2 * a + 12 * b + a + 7;
	return SHAPE(tiny_zero)() + SHAPE(tiny_arg)(a) +
	       SHAPE(third_byte_target)(n) + SHAPE(fourth_byte_target)(n) +
	       SHAPE(fifth_byte_target)(n) + SHAPE(cet_entry)(a, b) +
	       SHAPE(nop5_entry)(a, b) + SHAPE(jump_entry)(a);
}

static u64 check_conditions(u64 a, u64 b, u64 *want)
{
	u32 even = even_conditions(sub_flags(a, b));

	*want = spread(even, 2, 1) | spread(even, 3, 1) << 16;
	return SHAPE(cond_mask)(a, b) | SHAPE(cond_mask_near)(a, b) << 16;
}

static u64 check_flags_chain(u64 a, u64 b, u64 *want)
{
	*want = ref_flags_chain(a, b);
	return SHAPE(flags_chain)(a, b);
}

static u64 check_pushf(u64 a, u64 b, u64 *want)
{
	u64 f = sub_flags(a, b);

	*want = f | (f ^ 0x8d5) << 16;
	return SHAPE(pushf_forms)(a, b);
}

static u64 check_bits(u64 a, u64 b, u64 *want)
{
	*want = ref_bit_forms(a, b);
	return SHAPE(bit_forms)(a, b);
}

static u64 check_mul_div(u64 a, u64 b, u64 *want)
{
	*want = ref_mul_div_forms(a, b);
	return SHAPE(mul_div_forms)(a, b);
}

static u64 check_control(u64 a, u64 b, u64 *want)
{
	u64 n = (b & 7) + 1;

	*want = 101 * n + (a + 3) + (a + 2) + (a ^ 5) + (a + b + 0x1239) +
		(a - b);
	return SHAPE(loop_forms)(n) + SHAPE(call_through_memory)(a) +
	       SHAPE(jump_through_memory)(a) + SHAPE(return_to_pushed)(a) +
	       SHAPE(frame_forms)(a, b) + SHAPE(ret_pops)(a, b);
}

/* The addresses are those of this image; the sum takes only their difference. */
static u64 check_call_next(u64 a, u64 b, u64 *want)
{
	(void)b;
	*want = a;
	return SHAPE(call_next)() - SHAPE(call_next_expected)() + a;
}

static u64 check_strings(u64 a, u64 b, u64 *want)
{
	u8 src[16], dst[16];
	u64 i, n = (a & 7) + 8, sum = 0, at = n, got;

	for (i = 0; i < n; i++) {
		src[i] = (u8)(b >> (i & 7) * 8);
		if (i == (b & 31))
			src[i] = 0x7f;
	}
	for (i = n; i-- > 0;) {
		sum += src[i];
		if (src[i] == 0x7f)
			at = i;
	}
	*want = sum + (at << 16) + (1ul << 32);
	got = SHAPE(string_ops)(dst, src, n);
	for (i = 0; i < n; i++)
		if (dst[i] != (u8)sum)
			got = 0;
	return got;
}

static u64 check_locked(u64 a, u64 b, u64 *want)
{
	u64 cells[2] = { b, a ^ b };

	*want = ref_lock_forms(b, a ^ b, a);
	return SHAPE(lock_forms)(cells, a) + (cells[0] - a);
}

/*
 * rip_cell is at one address for all vCPUs: whoever finds it busy goes without
 * and takes the expected value.
 */
static u64 check_rip(u64 a, u64 b, u64 *want)
{
	static u32 busy;
	u64 got;

	(void)b;
	*want = ref_rip_forms(a);
	if (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))
		return *want;
	got = SHAPE(rip_forms)(a);
	__atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
	return got;
}

static u64 check_segment(u64 a, u64 b, u64 *want)
{
	u64 cells[2] = { a, b };

	*want = a + b;
	return SHAPE(segment_load)(cells);
}

static u64 check_registers(u64 a, u64 b, u64 *want)
{
	(void)b;
	*want = a;
#ifdef GP_USER
	return a + SHAPE(regs_pattern)(1000);
#else
	return a + SHAPE(regs_pattern)(12);
#endif
}

static u64 check_recursion(u64 a, u64 b, u64 *want)
{
	u64 n = a & 3;

	*want = ref_fib(n + 3) + (b & 3) + 2 + 2 * n + 3;
	/* ackermann(1, n) = n + 2, ackermann(2, n) = 2n + 3; the second is
	 * 2n + 3 by a hundred instructions, so only when n is small. */
	return SHAPE(fib_recursive)(n + 3) + SHAPE(ackermann)(1, b & 3) +
	       (n < 2 ? SHAPE(ackermann)(2, n) : 2 * n + 3);
}

static u64 check_dispatch(u64 a, u64 b, u64 *want)
{
	u64 op = (a ^ b) % 11, v;

	if (op == 0)
		v = b + a;
	else if (op == 1)
		v = a + ~b + 1;
	else if (op == 2)
		v = ~(~a | ~b);
	else if (op == 3)
		v = ~(~a & ~b);
	else if (op == 4)
		v = (a | b) - (a & b);
	else if (op == 5)
		v = b * a;
	else if (op == 6)
		v = a * (1ul << (b & 63));
	else if (op == 7)
		v = a / (1ul << (b & 63));
	else if (op == 8)
		v = b + b + (b > a ? 1 : 0);
	else if (op == 9)
		v = b + b + b - a - 1;
	else
		v = 0;
	*want = v;
	return SHAPE(dispatch_op)(op, a, b);
}

static u64 check_calls(u64 a, u64 b, u64 *want)
{
	u64 which = a % 3;
	struct pair p = SHAPE(pair_return)(a, b);

	*want = which == 0 ? a + b + 1 : which == 1 ? a - b + 1 :
						      a * 128 + (a ^ b) + 1;
	*want += (a ^ b) * 3 + (a & b) + 204 + 36 * a + 2 * a;
	return SHAPE(call_operation)(which, a, b) + SHAPE(tail_caller)(a, b) +
	       SHAPE(many_args)(a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6,
				a + 8) + 28 +
	       p.lo + p.hi;
}

static u64 check_narrow(u64 a, u64 b, u64 *want)
{
	u64 r = a * (a + 1) + a + 1;

	*want = (a & 0xff) + (b & 0xffff) + (a >> 32) +
		(u64)(((s64)(b & 0xff) ^ 0x80) - 0x80) + r;
	return SHAPE(narrow_args)((u8)a, (unsigned short)b, (u32)(a >> 32),
				  (signed char)b) +
	       SHAPE(big_frame)(a);
}

static u64 check_mixers(u64 a, u64 b, u64 *want)
{
	u64 r = a << 13 | a >> 51, s = b << 29 | b >> 35;

	*want = ((r * 0x9e3779b97f4a7c15) ^ (s * 0x9e3779b97f4a7c15)) +
		(a ^ a >> 17) * 3 + (b ^ b >> 11) * 5 + 2;
	return SHAPE(inlined_twice)(a, b) + SHAPE(first_mixer)(a) +
	       SHAPE(second_mixer)(b);
}

static u64 check_escape(u64 a, u64 b, u64 *want)
{
	*want = a + (a & 1 ? 1 : 7) + b + (b & 1 ? 1 : 7);
	return SHAPE(escape)(a) + SHAPE(escape)(b);
}

static const check_fn checks[] = {
	check_tiny,     check_conditions, check_flags_chain, check_pushf,
	check_bits,     check_mul_div,    check_control,     check_call_next,
	check_strings,  check_locked,     check_rip,         check_segment,
	check_registers, check_recursion, check_dispatch,    check_calls,
	check_narrow,   check_mixers,     check_escape,
};

u32 SHAPE(shape_check_count)(void)
{
	return ARRAY_SIZE(checks);
}

/* Returns the number of failed checks and adds the results to *sum. */
PROBED u64 SHAPE(run_shape_checks)(u64 seed, u64 *sum)
{
	u64 a = seed, b = seed, failed = 0;
	u32 i;

	for (i = 0; i < ARRAY_SIZE(checks); i++) {
		u64 got, want;

		a = a * 6364136223846793005 + 1442695040888963407;
		b = a ^ a >> 29;
		got = checks[i](a, b, &want);
		*sum = (*sum << 5 | *sum >> 59) ^ got;
		if (got == want)
			continue;
		failed++;
#ifdef GP_USER
		user_selfcheck_fail(CHECK_BASE + i, got, want);
#else
		selfcheck_fail(CHECK_BASE + i, got, want);
#endif
	}
	return failed;
}
