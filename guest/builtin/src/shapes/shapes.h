/*
 * Functions of every shape that a probe has to cope with, and checks that
 * compute the same results in another way. All of this is built twice: for
 * CPL0, and with GP_USER for CPL3, where the names begin with user_. It must
 * therefore be position independent and do nothing privileged, and it uses
 * general registers only.
 */
#ifndef GP_SHAPES_H
#define GP_SHAPES_H

#include "types.h"

#ifdef GP_USER
#define SHAPE(name) user_##name
#else
#define SHAPE(name) name
#endif

#ifndef __ASSEMBLER__

/* tiny.S */
void SHAPE(tiny_ret)(void);
u64 SHAPE(tiny_zero)(void);
u64 SHAPE(tiny_arg)(u64 a);
u64 SHAPE(third_byte_target)(u64 n);
u64 SHAPE(fourth_byte_target)(u64 n);
u64 SHAPE(fifth_byte_target)(u64 n);
u64 SHAPE(cet_entry)(u64 a, u64 b);
u64 SHAPE(nop5_entry)(u64 a, u64 b);
u64 SHAPE(jump_entry)(u64 a);

/* flags.S */
u64 SHAPE(cond_mask)(u64 a, u64 b);
u64 SHAPE(cond_mask_near)(u64 a, u64 b);
u64 SHAPE(flags_chain)(u64 a, u64 b);
u64 SHAPE(pushf_forms)(u64 a, u64 b);
u64 SHAPE(bit_forms)(u64 a, u64 b);
u64 SHAPE(mul_div_forms)(u64 a, u64 b);

/* control.S */
u64 SHAPE(loop_forms)(u64 n);
u64 SHAPE(call_through_memory)(u64 a);
u64 SHAPE(jump_through_memory)(u64 a);
u64 SHAPE(call_next)(void);
u64 SHAPE(call_next_expected)(void);
u64 SHAPE(return_to_pushed)(u64 a);
u64 SHAPE(frame_forms)(u64 a, u64 b);
u64 SHAPE(ret_pops)(u64 a, u64 b);
u64 SHAPE(set_jump)(u64 *buffer) __attribute__((returns_twice));
void SHAPE(long_jump)(const u64 *buffer, u64 value) __attribute__((noreturn));

/* memory.S */
u64 SHAPE(string_ops)(u8 *dst, const u8 *src, u64 n);
u64 SHAPE(lock_forms)(u64 *cells, u64 a);
u64 SHAPE(rip_forms)(u64 a);
u64 SHAPE(segment_load)(const u64 *cells);
u64 SHAPE(regs_pattern)(u64 rounds);
extern u64 SHAPE(rip_cell), SHAPE(rip_total);

/* functions.c */
u64 SHAPE(fib_recursive)(u64 n);
u64 SHAPE(ackermann)(u64 m, u64 n);
u64 SHAPE(tail_caller)(u64 a, u64 b);
u64 SHAPE(dispatch_op)(u64 op, u64 a, u64 b);
u64 SHAPE(many_args)(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h);
u64 SHAPE(call_operation)(u64 which, u64 a, u64 b);
u64 SHAPE(inlined_twice)(u64 a, u64 b);
u64 SHAPE(big_frame)(u64 a);
u64 SHAPE(escape)(u64 a);
u64 SHAPE(sort_words)(u64 seed);
u64 SHAPE(narrow_args)(u8 a, u16 b, u32 c, signed char d);
extern u64 SHAPE(shape_calls);

struct pair {
	u64 lo, hi;
};

struct pair SHAPE(pair_return)(u64 a, u64 b);

/* duplicate_a.c, duplicate_b.c: each has a static function of one name */
u64 SHAPE(first_mixer)(u64 a);
u64 SHAPE(second_mixer)(u64 a);

/* checks.c */
u64 SHAPE(run_shape_checks)(u64 seed, u64 *sum);
u32 SHAPE(shape_check_count)(void);

#endif /* !__ASSEMBLER__ */

#endif
