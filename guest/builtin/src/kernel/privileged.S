/*
 * Instructions that only the kernel may execute, in functions like those of
 * shapes/: cli and sti, popf with IF, control registers, iretq, far returns.
 */
#include "asm.h"

	.text

/* u64 cli_sti(u64 a): bit 9 of RFLAGS after cli and after sti: 0 + 2 * 0x200. */
FUNC cli_sti
	pushfq
	.cfi_adjust_cfa_offset 8
	cli
	pushfq
	.cfi_adjust_cfa_offset 8
	POP %rax
	andl $0x200, %eax
	sti
	pushfq
	.cfi_adjust_cfa_offset 8
	POP %rdx
	andl $0x200, %edx
	leaq (%rax,%rdx,2), %rax
	popfq
	.cfi_adjust_cfa_offset -8
	ret
ENDFUNC cli_sti

/* u64 iretq_here(u64 a): a + 0x10, through an iretq to the same level. */
FUNC iretq_here
	movq %rsp, %rdx
	leaq 1f(%rip), %rcx
	PUSH $SEL_KDATA
	PUSH %rdx
	pushfq
	.cfi_adjust_cfa_offset 8
	PUSH $SEL_KCODE
	PUSH %rcx
	iretq
	.cfi_adjust_cfa_offset -40
	ud2
1:	leaq 0x10(%rdi), %rax
	ret
ENDFUNC iretq_here

/* u64 far_return(u64 a): a + 0x20, through lretq. */
FUNC far_return
	leaq 1f(%rip), %rcx
	PUSH $SEL_KCODE
	PUSH %rcx
	lretq
	.cfi_adjust_cfa_offset -16
	ud2
1:	leaq 0x20(%rdi), %rax
	ret
ENDFUNC far_return

/* u64 control_registers(u64 a): a, after reading what a kernel reads. */
FUNC control_registers
	movq %cr0, %rax
	btl $31, %eax		/* paging is on */
	jnc 1f
	movq %cr3, %rax
	movq %rax, %cr3
	invlpg (%rsp)
	str %ax
	cmpw $SEL_TSS, %ax
	jne 1f
	movq %rdi, %rax
	ret
1:	xorl %eax, %eax
	ret
ENDFUNC control_registers

/*
 * void set_debug_registers(u64 dr0, u64 dr7): the guest's own use of them, by
 * `guestprobe call`. Its #DB goes to gp_foreign_db.
 */
FUNC set_debug_registers
	movq %rdi, %dr0
	movq %rsi, %dr7
	ret
ENDFUNC set_debug_registers

/* The end of a mirror function (jprobes.c): the host never lets it run on. */
FUNC jprobe_return
	nop
	ud2
ENDFUNC jprobe_return

/* u64 own_int3(u64 a): a + 3, behind a breakpoint of the guest's own. */
FUNC own_int3
	movq %rdi, %rax
	int3
	addq $3, %rax
	ret
ENDFUNC own_int3
