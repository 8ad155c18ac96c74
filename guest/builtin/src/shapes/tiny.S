/*
 * Entries that leave no room for a 5-byte jump, or none that may be used.
 */
#include "asm.h"
#include "shapes.h"

	.text
	.p2align 4, 0xcc

/* One byte. */
FUNC SHAPE(tiny_ret)
	ret
ENDFUNC SHAPE(tiny_ret)
	.p2align 4, 0xcc

/* Three bytes: 0. */
FUNC SHAPE(tiny_zero)
	xorl %eax, %eax
	ret
ENDFUNC SHAPE(tiny_zero)
	.p2align 4, 0xcc

/* Four bytes: a. The next function follows at once. */
FUNC SHAPE(tiny_arg)
	movq %rdi, %rax
	ret
ENDFUNC SHAPE(tiny_arg)

/* 1 + ... + n for n > 0. The loop's target is the 3rd byte. */
FUNC SHAPE(third_byte_target)
	xorl %eax, %eax
1:	addq %rdi, %rax
	decq %rdi
	jnz 1b
	ret
ENDFUNC SHAPE(third_byte_target)
	.p2align 4, 0xcc

/* n + ... + 1 too, with the target in the 4th byte. */
FUNC SHAPE(fourth_byte_target)
	movq %rdi, %rax
1:	decq %rdi
	jz 2f
	addq %rdi, %rax
	jmp 1b
2:	ret
ENDFUNC SHAPE(fourth_byte_target)
	.p2align 4, 0xcc

/* n * (n - 1) / 2: the target is the 5th byte, the last one a jump covers. */
FUNC SHAPE(fifth_byte_target)
	xorl %eax, %eax
	jmp 2f
1:	addq %rdi, %rax
2:	subq $1, %rdi
	ja 1b
	ret
ENDFUNC SHAPE(fifth_byte_target)
	.p2align 4, 0xcc

/* a + 4b, behind an endbr64. */
FUNC SHAPE(cet_entry)
	endbr64
	leaq (%rdi,%rsi,4), %rax
	ret
ENDFUNC SHAPE(cet_entry)
	.p2align 4, 0xcc

/* a + 8b, behind the 5-byte nop of a tracer. */
FUNC SHAPE(nop5_entry)
	.byte 0x0f, 0x1f, 0x44, 0x00, 0x00
	leaq (%rdi,%rsi,8), %rax
	ret
ENDFUNC SHAPE(nop5_entry)
	.p2align 4, 0xcc

/* a + 7. It starts with a jump to somewhere else, and the rest lies there. */
FUNC SHAPE(jump_entry)
	jmp SHAPE(jump_entry_cold)
	ud2
ENDFUNC SHAPE(jump_entry)
	.p2align 4, 0xcc

FUNC SHAPE(jump_entry_cold)
	leaq 7(%rdi), %rax
	ret
ENDFUNC SHAPE(jump_entry_cold)
