/*
 * Changing stacks: between tasks, from CPL0 to CPL3, and out of a faulting
 * call of the call service.
 */
#include "asm.h"

	.text

/*
 * struct task *__switch_to_asm(struct task *prev, struct task *next)
 *
 * Saves what the ABI wants preserved on prev's stack, goes over to next's, and
 * continues in __switch_to, which returns to where next once called this (or to
 * ret_from_fork). task.sp is the first field.
 */
FUNC __switch_to_asm
	SAVE rbp
	SAVE rbx
	SAVE r12
	SAVE r13
	SAVE r14
	SAVE r15
	movq %rsp, (%rdi)
	movq (%rsi), %rsp	/* the frame of the other task is like this one */
	RESTORE r15
	RESTORE r14
	RESTORE r13
	RESTORE r12
	RESTORE rbx
	RESTORE rbp
	jmp __switch_to
ENDFUNC __switch_to_asm

/* First return of a new task: RBX is its function, R12 the argument. */
FUNC ret_from_fork
	.cfi_undefined rip	/* nobody called this */
	movq %rax, %rdi
	call finish_task_switch
	sti
	movq %r12, %rdi
	call *%rbx
	movq %rax, %rdi
	call do_exit
	ud2
ENDFUNC ret_from_fork

/* void enter_user(rip, rsp, cpu, flags): to CPL3, with IF set and two arguments. */
FUNC enter_user
	PUSH $SEL_UDATA
	PUSH %rsi
	PUSH $0x202
	PUSH $SEL_UCODE
	PUSH %rdi
	movq %rdx, %rdi
	movq %rcx, %rsi
	xorl %eax, %eax
	xorl %ebx, %ebx
	xorl %ecx, %ecx
	xorl %edx, %edx
	xorl %ebp, %ebp
	xorl %r8d, %r8d
	xorl %r9d, %r9d
	xorl %r10d, %r10d
	xorl %r11d, %r11d
	xorl %r12d, %r12d
	xorl %r13d, %r13d
	xorl %r14d, %r14d
	xorl %r15d, %r15d
	iretq
ENDFUNC enter_user

/*
 * u64 call_protected(u64 fn, u64 *args, u64 *recover_sp): calls fn with six
 * arguments. While it runs *recover_sp is where call_fault_exit continues.
 */
FUNC call_protected
	FRAME
	pushq %rbx
	.cfi_offset rbx, -24
	pushq %r12
	.cfi_offset r12, -32
	pushq %r13
	.cfi_offset r13, -40
	pushq %r14
	.cfi_offset r14, -48
	pushq %r15
	.cfi_offset r15, -56
	pushq %rdx
	movq %rsp, (%rdx)
	movq %rdi, %rax
	movq %rsi, %r10
	movq (%r10), %rdi
	movq 8(%r10), %rsi
	movq 16(%r10), %rdx
	movq 24(%r10), %rcx
	movq 32(%r10), %r8
	movq 40(%r10), %r9
	call *%rax
.Lcall_done:
	popq %rdx
	movq $0, (%rdx)
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	UNFRAME popq %rbp
ENDFUNC call_protected

/* void call_fault_exit(u64 recover_sp): the call returns ~0 at once. */
FUNC call_fault_exit
	.cfi_undefined rip
	movq %rdi, %rsp
	leaq 48(%rsp), %rbp
	movq $-1, %rax
	sti
	jmp .Lcall_done
ENDFUNC call_fault_exit
