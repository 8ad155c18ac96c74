# Entry and exceptions. None of it is to be probed: section .entry.text.
	.section .entry.text, "ax", @progbits
	.globl	_start
	.type	_start, @function
_start:					# RDI: boot-info block
	cmpl	$0, 0x18(%rdi)		# only the first vCPU has something to do
	jne	1f
	call	start
1:	cli
	hlt
	jmp	1b
	.size	_start, . - _start

# Vectors 0 to 32, 16 bytes of code each. Where the CPU pushes no error code, we do.
	.macro	VECTOR n
	.balign	16
	.if	\n == 1
	outb	%al, $0xf1		# a debug exception: the host's, or
	iretq
	.globl	gp_foreign_db
gp_foreign_db:				# ours
	.elseif	\n == 3
	outb	%al, $0xf3		# a breakpoint: the host's, or
	iretq
	.globl	gp_foreign_bp
gp_foreign_bp:				# ours
	.endif
	.if	\n != 8 && (\n < 10 || \n > 14) && \n != 17 && \n != 21
	pushq	$0
	.endif
	pushq	$\n
	jmp	trap
	.endm

	.balign	16
	.globl	vectors
	.type	vectors, @function
vectors:
	.set	i, 0
	.altmacro
	.rept	33
	VECTOR	%i
	.set	i, i + 1
	.endr
	.size	vectors, . - vectors

	.type	trap, @function
trap:					# RSP -> vector, error code, RIP, CS, RFLAGS, RSP, SS
	cmpq	$32, (%rsp)		# the timer: hlt is over, that is all
	je	2f
	pushq	%rax
	movq	24(%rsp), %rax		# RIP in the engine's memory?
	subq	slots(%rip), %rax
	cmpq	slots_size(%rip), %rax
	popq	%rax
	jae	1f
	outb	%al, $0xf6		# then the host says where it was
	cmpq	$-1, (%rsp)		# and may have dealt with it
	je	2f
1:	movq	%rsp, %rdi		# a defect of ours: say what and where
	call	fault
	movl	(%rsp), %eax		# the end, with 100 + vector
	addl	$100, %eax
	outl	%eax, $0xf4
2:	addq	$16, %rsp
	iretq
	.size	trap, . - trap

	.section .note.GNU-stack, "", @progbits
