	.set	STACKS, 32768		/* of a vCPU: RSP0 and IST2, IST1 for #BP and #DB, idle */

	.section .entry.text, "ax", @progbits
	.globl	_start
	.type	_start, @function
_start:
	movl	24(%rdi), %eax
	movq	%rax, %rcx
	imulq	$STACKS, %rcx, %rcx
	leaq	stacks(%rip), %rdx
	addq	%rdx, %rcx
	leaq	STACKS-64(%rcx), %rsp
	movl	%eax, (%rcx)		/* the vCPU's number is where its stacks begin */
	xorl	%ebp, %ebp
	movq	%rdi, %rsi
	movl	%eax, %edi
	call	boot
	ud2
	.size	_start, . - _start

	.macro	STUB n, code
	.type	vector\n, @function
vector\n:
	.if !\code
	pushq	$0
	.endif
	pushq	$\n
	jmp	trap
	.size	vector\n, . - vector\n
	.endm

	.altmacro
	.set	i, 0
	.rept	33
	.if i != 1 && i != 3
	.if i == 8 || (i >= 10 && i <= 14) || i == 17 || i == 21
	STUB %i, 1
	.else
	STUB %i, 0
	.endif
	.endif
	.set	i, i+1
	.endr

	/* RSP -> vector, error code, RIP, CS, RFLAGS, RSP, SS */
	.globl	trap
	.type	trap, @function
trap:
	pushq	%rax
	cmpq	$32, 8(%rsp)
	jae	1f			/* no exception */
	movq	24(%rsp), %rax
	subq	exec_lo(%rip), %rax
	cmpq	exec_size(%rip), %rax
	jb	2f
	movq	24(%rsp), %rax
	subq	kexec_lo(%rip), %rax
	cmpq	kexec_size(%rip), %rax
	jae	1f
2:	popq	%rax
	outb	%al, $0xf6		/* an exception in the engine's code */
	cmpq	$-1, (%rsp)
	jne	3f
	addq	$16, %rsp
	iretq
1:	popq	%rax
3:	pushq	%rdi
	pushq	%rsi
	pushq	%rdx
	pushq	%rcx
	pushq	%rax
	pushq	%r8
	pushq	%r9
	pushq	%r10
	pushq	%r11
	pushq	%rbx
	pushq	%rbp
	pushq	%r12
	pushq	%r13
	pushq	%r14
	pushq	%r15
	cld
	movq	%rsp, %rdi
	call	handle
	.globl	leave
leave:	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%rbp
	popq	%rbx
	popq	%r11
	popq	%r10
	popq	%r9
	popq	%r8
	popq	%rax
	popq	%rcx
	popq	%rdx
	popq	%rsi
	popq	%rdi
	addq	$16, %rsp
	iretq
	.size	trap, . - trap

	.type	vector3, @function
vector3:
	outb	%al, $0xf3
	iretq
	.globl	gp_foreign_bp
gp_foreign_bp:
	pushq	$0
	pushq	$3
	jmp	trap
	.size	vector3, . - vector3

	.type	vector1, @function
vector1:
	outb	%al, $0xf1
	iretq
	.globl	gp_foreign_db
gp_foreign_db:
	pushq	$0
	pushq	$1
	jmp	trap
	.size	vector1, . - vector1

	.globl	syscalled
	.type	syscalled, @function
syscalled:
	sysretq
	.size	syscalled, . - syscalled

	.globl	enter
	.type	enter, @function
enter:					/* goes to the frame at RDI */
	movq	%rdi, %rsp
	jmp	leave
	.size	enter, . - enter

	.section .rodata
	.balign	8
	.globl	vectors
vectors:
	.altmacro
	.macro	ADDR n
	.quad	vector\n
	.endm
	.set	i, 0
	.rept	33
	ADDR	%i
	.set	i, i+1
	.endr

	.bss
	.balign	STACKS
	.globl	stacks
stacks:	.skip	8*STACKS
