/* Jumps, calls and returns in their rarer forms. */
#include "asm.h"
#include "shapes.h"

	.text

/* u64 loop_forms(n), n > 0: 100n + n by loop, loopne and jrcxz. */
FUNC SHAPE(loop_forms)
	xorl %eax, %eax
	movq %rdi, %rcx
1:	addq $100, %rax
	loop 1b
	jrcxz 2f
	ud2
2:	movq %rdi, %rcx
	testq %rdi, %rdi	/* ZF = 0 */
3:	leaq 1(%rax), %rax
	loopne 3b
	cmpl %eax, %eax		/* ZF = 1: loope goes on, loopne stops */
	movl $2, %ecx
	loopne 4f
	jrcxz 4f
	loope 4f		/* rcx = 0 after this: falls through */
	ret
4:	ud2
ENDFUNC SHAPE(loop_forms)

/* u64 call_through_memory(a): a + 1 + 2, by call *mem and call *table(,reg). */
FUNC SHAPE(call_through_memory)
	FRAME
	call *SHAPE(add_pointers)(%rip)
	movq %rax, %rdi
	leaq SHAPE(add_pointers)(%rip), %rdx
	movl $1, %ecx
	call *(%rdx,%rcx,8)
	UNFRAME leave
ENDFUNC SHAPE(call_through_memory)

/* u64 jump_through_memory(a): a + 2, a tail call by jmp *mem. */
FUNC SHAPE(jump_through_memory)
	jmp *SHAPE(add_pointers)+8(%rip)
ENDFUNC SHAPE(jump_through_memory)

FUNC SHAPE(add_one)
	leaq 1(%rdi), %rax
	ret
ENDFUNC SHAPE(add_one)

FUNC SHAPE(add_two)
	PUSH %rdi
	POP %rax
	addq $2, %rax
	ret
ENDFUNC SHAPE(add_two)

/*
 * u64 call_next(void): the address that a call pushes. A probe on the call must
 * push the original one, not one of its copy.
 */
FUNC SHAPE(call_next)
	call 1f
	.cfi_adjust_cfa_offset 8
1:	POP %rax
	ret
ENDFUNC SHAPE(call_next)

FUNC SHAPE(call_next_expected)
	leaq SHAPE(call_next)+5(%rip), %rax
	ret
ENDFUNC SHAPE(call_next_expected)

/* u64 return_to_pushed(a): a ^ 5, by pushing a target and returning to it. */
FUNC SHAPE(return_to_pushed)
	leaq 1f(%rip), %rax
	PUSH %rax
	movq %rdi, %rax
	ret
	.cfi_adjust_cfa_offset -8
	ud2
1:	xorq $5, %rax
	ret
ENDFUNC SHAPE(return_to_pushed)

/* u64 frame_forms(a, b): a + b + 0x1234 + 5, through enter, push and leave. */
FUNC SHAPE(frame_forms)
	enter $32, $0
	.cfi_def_cfa rbp, 16
	.cfi_offset rbp, -16
	movq %rdi, -8(%rbp)
	movq %rsi, -16(%rbp)
	pushq -8(%rbp)
	pushq $0x1234
	pushq $5
	popq %rax
	popq %rdx
	addq %rdx, %rax
	popq -24(%rbp)
	addq -24(%rbp), %rax
	addq -16(%rbp), %rax
	UNFRAME leave
ENDFUNC SHAPE(frame_forms)

/* u64 ret_pops(a, b): a - b; the callee takes its arguments off the stack. */
FUNC SHAPE(ret_pops)
	PUSH %rsi
	PUSH %rdi
	call SHAPE(subtract_pops)
	.cfi_adjust_cfa_offset -16
	ret
ENDFUNC SHAPE(ret_pops)

FUNC SHAPE(subtract_pops)
	movq 8(%rsp), %rax
	subq 16(%rsp), %rax
	ret $16
ENDFUNC SHAPE(subtract_pops)

/*
 * u64 set_jump(u64 buffer[8]): 0, and once more the value of a long_jump to the
 * buffer: the functions in between never return.
 */
FUNC SHAPE(set_jump)
	movq (%rsp), %rax
	leaq 8(%rsp), %rdx
	movq %rax, (%rdi)
	movq %rdx, 8(%rdi)
	movq %rbp, 16(%rdi)
	movq %rbx, 24(%rdi)
	movq %r12, 32(%rdi)
	movq %r13, 40(%rdi)
	movq %r14, 48(%rdi)
	movq %r15, 56(%rdi)
	xorl %eax, %eax
	ret
ENDFUNC SHAPE(set_jump)

/* void long_jump(const u64 buffer[8], u64 value) */
FUNC SHAPE(long_jump)
	movq %rsi, %rax
	movq 56(%rdi), %r15
	movq 48(%rdi), %r14
	movq 40(%rdi), %r13
	movq 32(%rdi), %r12
	movq 24(%rdi), %rbx
	movq 16(%rdi), %rbp
	movq 8(%rdi), %rsp
	jmp *(%rdi)
ENDFUNC SHAPE(long_jump)

	.section .data.rel.ro, "aw"
	.balign 8
	.globl SHAPE(add_pointers)
	.type SHAPE(add_pointers), @object
	.size SHAPE(add_pointers), 16
SHAPE(add_pointers):
	.quad SHAPE(add_one), SHAPE(add_two)
