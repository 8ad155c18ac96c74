/*
 * Functions for kretprobes, stack traces and jprobes. As in suite.S, they
 * follow the System V ABI, and their results are in rax.
 */

	.macro	FUNC name
	.p2align 4, 0xcc
	.globl	\name
	.type	\name, @function
\name:
	.endm

	.macro	END name
	.size	\name, . - \name
	.endm

	.macro	SAVE
	pushq	%rbx
	pushq	%rbp
	pushq	%r12
	pushq	%r13
	pushq	%r14
	pushq	%r15
	.endm

	.macro	RESTORE
	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%rbp
	popq	%rbx
	.endm

	.text

FUNC recurse				/* rdi + (rdi - 1) + ... + 1, in rdi + 1 activations */
	pushq	%rbp
	movq	%rsp, %rbp
	pushq	%rbx
	pushq	%rdi
	xorl	%eax, %eax
	movq	%rdi, %rbx
	testq	%rdi, %rdi
	jz	1f
	decq	%rdi
	call	recurse
	addq	%rbx, %rax
1:	popq	%rdi
	popq	%rbx
	popq	%rbp
	ret
END recurse

FUNC recurse_if				/* the same with interrupts on */
	sti
	call	recurse
	cli
	ret
END recurse_if

/* --- frames, as the kernel's own test has them -------------------------- */

FUNC stack_driver			/* stack_target(rdi) + 1 */
	pushq	%rbp
	movq	%rsp, %rbp
	call	stack_target
	.globl	stack_r1
stack_r1:
	incq	%rax
	popq	%rbp
	ret
END stack_driver

FUNC stack_target			/* stack_internal(rdi) + 1 */
	pushq	%rbp
	movq	%rsp, %rbp
	call	stack_internal
	.globl	stack_r0
stack_r0:
	incq	%rax
	popq	%rbp
	ret
END stack_target

FUNC stack_internal			/* rdi + 1 */
	pushq	%rbp
	movq	%rsp, %rbp
	leaq	1(%rdi), %rax
	popq	%rbp
	ret
END stack_internal

/* --- other ways out of a function --------------------------------------- */

FUNC tail_call				/* hot(rdi + 1), by a jump */
	incq	%rdi
	jmp	tail_end
END tail_call

FUNC tail_end				/* rdi + 1 */
	leaq	1(%rdi), %rax
	ret
END tail_end

FUNC tail_loop				/* 0, entered rdi times */
	decq	%rdi
	jnz	tail_loop
	xorl	%eax, %eax
	ret
END tail_loop

FUNC jump_over				/* 77, out of rdi activations of jump_deep */
	pushq	%rbp
	movq	%rsp, %rsi
	call	jump_deep
	ud2
jump_target:
	popq	%rbp
	movl	$77, %eax
	ret
END jump_over

FUNC jump_deep
	pushq	%rbp
	movq	%rsp, %rbp
	decq	%rdi
	jz	1f
	call	jump_deep
	ud2
1:	movq	%rsi, %rsp
	jmp	jump_target
END jump_deep

FUNC twice				/* rdi: jumps back to where set_jump returned, rdi times */
	pushq	%rbp
	movq	%rsp, %rbp
	subq	$48, %rsp
	movq	%rdi, -8(%rbp)
	movq	$0, -16(%rbp)
	leaq	-48(%rbp), %rdi
	call	set_jump
	movq	-16(%rbp), %rax
	cmpq	-8(%rbp), %rax
	jae	1f
	incq	-16(%rbp)
	movq	-16(%rbp), %rdi
	call	set_jump_nested
	leaq	-48(%rbp), %rdi
	call	long_jump
	ud2
1:	leave
	ret
END twice

FUNC set_jump_nested			/* another activation of set_jump, on a stack rdi words deeper */
	pushq	%rbp
	movq	%rsp, %rbp
	shlq	$4, %rdi
	subq	%rdi, %rsp
	subq	$32, %rsp
	movq	%rsp, %rdi
	call	set_jump
	leave
	ret
END set_jump_nested

FUNC set_jump
	movq	(%rsp), %rax
	movq	%rax, (%rdi)
	leaq	8(%rsp), %rax
	movq	%rax, 8(%rdi)
	movq	%rbp, 16(%rdi)
	xorl	%eax, %eax
	ret
END set_jump

FUNC long_jump
	movq	16(%rdi), %rbp
	movq	8(%rdi), %rsp
	jmp	*(%rdi)
END long_jump

FUNC fill_stack				/* overwrites 2 KiB of stack; rdi */
	movq	%rsp, %rdx
	movl	$256, %ecx
	movabsq	$0x5a5a5a5a5a5a5a5a, %rax
1:	pushq	%rax
	decl	%ecx
	jnz	1b
	movq	%rdx, %rsp
	movq	%rdi, %rax
	ret
END fill_stack

/* --- tasks: each has a stack, and goes on wherever it is resumed ---------- */

FUNC co_begin				/* co_begin(i, x): task i runs co_body(x) until it parks; 1 then */
	SAVE
	leaq	co_host(%rip), %rax
	movq	%rsp, (%rax,%rdi,8)
	movq	%rdi, %rbx
	leaq	co_stacks+4096(%rip), %rsp
	movq	%rdi, %rax
	shlq	$12, %rax
	addq	%rax, %rsp
	movq	%rsi, %rdi
	movq	%rbx, %rsi
	call	co_body
	leaq	co_host(%rip), %rdx
	movq	(%rdx,%rbx,8), %rsp
	RESTORE
	ret
END co_begin

FUNC co_body				/* rdi + 100, after task rsi has parked */
	pushq	%rbp
	movq	%rsp, %rbp
	pushq	%rdi
	pushq	%rsi
	movq	%rsi, %rdi
	call	co_park
	popq	%rsi
	popq	%rdi
	leaq	100(%rdi), %rax
	popq	%rbp
	ret
END co_body

FUNC co_park				/* back to who began or resumed task rdi */
	SAVE
	leaq	co_task(%rip), %rax
	movq	%rsp, (%rax,%rdi,8)
	leaq	co_host(%rip), %rax
	movq	(%rax,%rdi,8), %rsp
	RESTORE
	movl	$1, %eax
	ret
END co_park

FUNC co_resume				/* task rdi goes on; what its body returns */
	SAVE
	leaq	co_host(%rip), %rax
	movq	%rsp, (%rax,%rdi,8)
	leaq	co_task(%rip), %rax
	movq	(%rax,%rdi,8), %rsp
	RESTORE
	ret
END co_resume

FUNC co_twice				/* co_twice(i): task i's stack runs twice_body until it parks; 1 then */
	SAVE
	leaq	co_host(%rip), %rax
	movq	%rsp, (%rax,%rdi,8)
	movq	%rdi, %rbx
	leaq	co_stacks+4096(%rip), %rsp
	movq	%rdi, %rax
	shlq	$12, %rax
	addq	%rax, %rsp
	call	twice_body
	leaq	co_host(%rip), %rdx
	movq	(%rdx,%rbx,8), %rsp
	RESTORE
	ret
END co_twice

FUNC twice_body				/* 88, after task rdi has parked between the two returns of set_jump */
	pushq	%rbp
	movq	%rsp, %rbp
	subq	$48, %rsp
	movq	%rdi, -8(%rbp)
	movq	$0, -16(%rbp)
	leaq	-48(%rbp), %rdi
	call	set_jump
	cmpq	$0, -16(%rbp)
	jne	1f
	incq	-16(%rbp)
	movq	-8(%rbp), %rdi
	call	co_park
	leaq	-48(%rbp), %rdi
	call	long_jump
	ud2
1:	movl	$88, %eax
	leave
	ret
END twice_body

FUNC co_call				/* co_call(i, f, x): f(x) on the stack of task i, from its top */
	SAVE
	movq	%rsp, %rbx
	leaq	co_stacks+4096(%rip), %rsp
	shlq	$12, %rdi
	addq	%rdi, %rsp
	movq	%rdx, %rdi
	call	*%rsi
	movq	%rbx, %rsp
	RESTORE
	ret
END co_call

FUNC co_start				/* co_start(i, f, x): task i runs f(x, i) until it parks; 1 then */
	SAVE
	leaq	co_host(%rip), %rax
	movq	%rsp, (%rax,%rdi,8)
	movq	%rdi, %rbx
	leaq	co_stacks+4096(%rip), %rsp
	movq	%rdi, %rax
	shlq	$12, %rax
	addq	%rax, %rsp
	movq	%rsi, %rax
	movq	%rdi, %rsi
	movq	%rdx, %rdi
	call	*%rax
	leaq	co_host(%rip), %rdx
	movq	(%rdx,%rbx,8), %rsp
	RESTORE
	ret
END co_start

FUNC co_tail				/* rdi + 1 by a jump, after task rsi has parked */
	pushq	%rbp
	movq	%rsp, %rbp
	pushq	%rdi
	pushq	%rsi
	movq	%rsi, %rdi
	call	co_park
	popq	%rsi
	popq	%rdi
	popq	%rbp
	jmp	tail_end
END co_tail

FUNC many_sites				/* calls set_jump from 100 places */
	pushq	%rbp
	movq	%rsp, %rbp
	subq	$48, %rsp
	.rept	100
	leaq	-48(%rbp), %rdi
	call	set_jump
	.endr
	leave
	ret
END many_sites

FUNC co_own				/* co_own(i, pid): the stack of task i becomes that of a task with this number */
	leaq	co_stacks(%rip), %rax
	shlq	$12, %rdi
	addq	%rax, %rdi
	movl	%esi, 12(%rdi)
	movq	gp_profile+16(%rip), %rax
	movq	%rax, (%rdi)
	ret
END co_own

FUNC co_disown				/* co_disown(i): the task is gone, its stack nobody's */
	leaq	co_stacks(%rip), %rax
	shlq	$12, %rdi
	movq	$0, (%rax,%rdi)
	ret
END co_disown

FUNC __switch_to			/* no kretprobe on a function of this name */
	movq	%rdi, %rax
	ret
END __switch_to

/* --- jprobes ------------------------------------------------------------- */

FUNC many_args				/* a + 2b + 3c + 4d + 5e + 6f + 7g + 8h */
	leaq	(%rdi,%rsi,2), %rax
	leaq	(%rdx,%rdx,2), %r10
	addq	%r10, %rax
	leaq	(%rax,%rcx,4), %rax
	leaq	(%r8,%r8,4), %r10
	addq	%r10, %rax
	imulq	$6, %r9, %r10
	addq	%r10, %rax
	imulq	$7, 8(%rsp), %r10
	addq	%r10, %rax
	imulq	$8, 16(%rsp), %r10
	addq	%r10, %rax
	ret
END many_args

FUNC call_many				/* many_args(rdi .. rdi + 7) */
	pushq	%rbp
	movq	%rsp, %rbp
	leaq	7(%rdi), %rax
	pushq	%rax
	leaq	6(%rdi), %rax
	pushq	%rax
	leaq	1(%rdi), %rsi
	leaq	2(%rdi), %rdx
	leaq	3(%rdi), %rcx
	leaq	4(%rdi), %r8
	leaq	5(%rdi), %r9
	call	many_args
	leave
	ret
END call_many

FUNC mirror_many			/* notes its arguments and spoils all it can */
	pushq	%rbp
	movq	%rsp, %rbp
	leaq	mirror_seen(%rip), %rax
	movq	%rdi, (%rax)
	movq	%rsi, 8(%rax)
	movq	%rdx, 16(%rax)
	movq	%rcx, 24(%rax)
	movq	%r8, 32(%rax)
	movq	%r9, 40(%rax)
	movq	16(%rbp), %rdi
	movq	%rdi, 48(%rax)
	movq	24(%rbp), %rdi
	movq	%rdi, 56(%rax)
	incq	mirror_calls(%rip)
	movq	$-1, %rdi
	movq	%rdi, %rsi
	movq	%rdi, %rdx
	movq	%rdi, %rcx
	movq	%rdi, %r8
	movq	%rdi, %r9
	movq	%rdi, %rbx
	movq	%rdi, 16(%rbp)
	movq	%rdi, 24(%rbp)
	stc
	call	hot				/* may itself be probed */
	call	jprobe_return
	ud2
END mirror_many

FUNC mirror_wait				/* a mirror that takes its time */
	movl	$20000, %ecx
1:	nop
	decl	%ecx
	jnz	1b
	movq	$-1, %rdi
	call	jprobe_return
	ud2
END mirror_wait

FUNC mirror_returns			/* a mirror that returns when its first argument is odd */
	movq	$-1, %rsi
	movq	%rsi, 8(%rsp)
	incq	mirror_calls(%rip)
	testb	$1, %dil
	jnz	1f
	call	jprobe_return
	ud2
1:	movq	%rsi, %rax
	movq	%rsi, %rbx
	stc
	ret
END mirror_returns

FUNC jprobe_return
	nop
	ud2
END jprobe_return

	.data
	.p2align 3
	.globl	mirror_calls, mirror_seen
	.type	mirror_calls, @object
	.size	mirror_calls, 8
mirror_calls: .quad 0
	.type	mirror_seen, @object
	.size	mirror_seen, 64
mirror_seen: .skip 64

/* The guest profile (guest/profile.go): the stacks of tasks, once co_own was called. */
	.globl	gp_profile
	.type	gp_profile, @object
	.size	gp_profile, 56
gp_profile:
	.quad	0x31464f5250504728, -4096, 0x5441545345544955, 2	/* the kernel text runs at one address only */
	.long	0, 8, 12, 16, 24, 0

	.bss
	.p2align 12
	.globl	co_stacks, co_host, co_task
	.type	co_stacks, @object
	.type	co_host, @object
	.type	co_task, @object
	.size	co_stacks, 16 * 4096
	.size	co_host, 16 * 8
	.size	co_task, 16 * 8
co_stacks: .skip 16 * 4096
co_host: .skip 16 * 8
co_task: .skip 16 * 8
