/* XMM registers under preemption. */
#include "asm.h"

	.text

/*
 * u64 user_sse_pattern(u64 rounds): gives each XMM register a value made from
 * its number, lets time pass, and returns a bit per register that changed.
 */
FUNC user_sse_pattern
	FRAME
	.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
	movabsq $0x1122334455667700 + \n, %rax
	movq %rax, %xmm\n
	punpcklqdq %xmm\n, %xmm\n
	.endr
1:	subq $1, %rdi
	ja 1b
	xorl %eax, %eax
	.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
	movabsq $0x1122334455667700 + \n, %rdx
	movq %xmm\n, %rcx
	psrldq $8, %xmm\n
	movq %xmm\n, %rsi
	xorq %rdx, %rcx
	xorq %rdx, %rsi
	orq %rsi, %rcx
	jz 2f
	orl $1 << \n, %eax
2:
	.endr
	UNFRAME popq %rbp
ENDFUNC user_sse_pattern
