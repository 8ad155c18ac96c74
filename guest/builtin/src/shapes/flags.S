/* Instructions that read and write RFLAGS. */
#include "asm.h"
#include "shapes.h"

	.text

/*
 * u64 cond_mask(a, b): compares a with b and returns one bit per condition
 * code, o in bit 15 down to g in bit 0. lea and jcc leave the flags alone.
 */
FUNC SHAPE(cond_mask)
	xorl %eax, %eax
	cmpq %rsi, %rdi
	.irp cc, o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g
	leaq (%rax,%rax), %rax
	j\cc 1f
	jmp 2f
1:	leaq 1(%rax), %rax
2:
	.endr
	ret
ENDFUNC SHAPE(cond_mask)

/*
 * u64 cond_mask_near(a, b): two bits for every even condition code, 3 if it holds
 * and else 1, by 6-byte jumps, setcc and cmov.
 */
FUNC SHAPE(cond_mask_near)
	SAVE rbx
	xorl %eax, %eax
	xorl %edx, %edx
	movl $1, %ebx
	cmpq %rsi, %rdi
	.irp cc, o, b, e, be, s, p, l, le
	leaq (%rax,%rax), %rax
	{disp32} j\cc 1f
	set\cc %dl
	leaq (%rax,%rax), %rax
	leaq 1(%rax,%rdx), %rax
	jmp 2f
1:	set\cc %dl
	leaq (%rax,%rax), %rax
	leaq (%rax,%rdx), %rax
	leaq 1(%rax,%rdx), %rax
	movl $0, %edx
	cmov\cc %rbx, %rcx
2:
	.endr
	RESTORE rbx
	ret
ENDFUNC SHAPE(cond_mask_near)

/* u64 flags_chain(a, b): carries through adc, sbb, rcl, rcr, cmc, lahf. */
FUNC SHAPE(flags_chain)
	movq %rdi, %rax
	addq %rsi, %rax		/* CF = carry of a + b */
	adcq $0, %rax		/* end-around */
	stc
	rclq $1, %rax		/* rax = rax << 1 | 1, CF = old bit 63 */
	cmc
	sbbq $0, %rax		/* minus the inverted bit */
	clc
	rcrq $1, %rax		/* CF = bit 0 */
	lahf
	movzbl %ah, %ecx
	andl $1, %ecx
	shrq $16, %rax		/* AH is gone */
	shlq $1, %rax
	orq %rcx, %rax
	ret
ENDFUNC SHAPE(flags_chain)

/*
 * u64 pushf_forms(a, b): the arithmetic flags of a - b, once by pushfq and once
 * after a popfq of their complement, in bits 0..15 and 16..31.
 */
FUNC SHAPE(pushf_forms)
	cmpq %rsi, %rdi
	pushfq
	.cfi_adjust_cfa_offset 8
	POP %rax
	movq %rax, %rdx
	xorl $0x8d5, %edx	/* OF SF ZF AF PF CF */
	PUSH %rdx
	popfq
	.cfi_adjust_cfa_offset -8
	pushfq
	.cfi_adjust_cfa_offset 8
	POP %rdx
	andl $0x8d5, %eax
	andl $0x8d5, %edx
	shll $16, %edx
	orl %edx, %eax
	ret
ENDFUNC SHAPE(pushf_forms)

/* u64 bit_forms(a, b): shifts, rotates, bit tests, scans, byte swaps. */
FUNC SHAPE(bit_forms)
	movq %rdi, %rax
	movl %esi, %ecx
	rolq %cl, %rax
	bswapq %rax
	btsq $5, %rax
	btrq $9, %rax
	btcq %rsi, %rax
	shldq $7, %rdi, %rax
	orq $16, %rax
	bsrq %rax, %rdx
	bsfq %rax, %rcx
	addq %rdx, %rax
	subq %rcx, %rax
	shrdq $11, %rsi, %rax
	sarq $3, %rax
	ret
ENDFUNC SHAPE(bit_forms)

/* u64 mul_div_forms(a, b): a * b in 128 bits, divided by b | 1, and more. */
FUNC SHAPE(mul_div_forms)
	movq %rsi, %rcx
	orq $1, %rcx
	movq %rdi, %rax
	xorl %edx, %edx
	divq %rcx		/* q, r of a / (b | 1) */
	movq %rdx, %r8
	mulq %rcx
	addq %r8, %rax		/* a again */
	imulq $31, %rax, %rax
	movslq %edi, %rdx
	imulq %rdx, %rax
	movsbq %sil, %rdx
	addq %rdx, %rax
	movzwl %di, %edx
	subq %rdx, %rax
	cltq
	ret
ENDFUNC SHAPE(mul_div_forms)
