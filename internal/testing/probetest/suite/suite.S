/*
 * The guest of the conformance suite: a bare ELF64 with the boot contract of
 * docs/guest.md. Every vCPU sets up its descriptor tables and then parks at a hlt
 * with interrupts off, where the host may call the functions below. Rebuild
 * with build.sh after a change; a test compares the checksums.
 *
 * Functions follow the System V ABI. All results are in rax.
 */

	.set	NVEC, 40		/* vectors that have a gate */
	.set	MAXCPU, 8

	.macro	FUNC name
	.p2align 4, 0xcc
	.globl	\name
	.type	\name, @function
\name:
	.endm

	.macro	END name
	.size	\name, . - \name
	.endm

	.macro	VAR name, value=0
	.globl	\name
	.type	\name, @object
	.size	\name, 8
\name:	.quad	\value
	.endm

/* --- entry, vectors --------------------------------------------------- */

	.section .entry.text, "ax", @progbits

FUNC _start
	movl	24(%rdi), %ebx			/* boot info: this vCPU's number */
	movq	48(%rdi), %rax			/* kernel exec area, start and end */
	movq	%rax, gp_exec_lo(%rip)
	movq	56(%rdi), %rax
	movq	%rax, gp_exec_hi(%rip)
	movq	64(%rdi), %rax			/* the same for user code */
	movq	%rax, gp_uexec_lo(%rip)
	movq	72(%rdi), %rax
	movq	%rax, gp_uexec_hi(%rip)

	/* TSS: IST1 for traps, IST2 for faults (SDM Vol. 3, 7.7) */
	movl	%ebx, %eax
	shll	$7, %eax
	leaq	tss(%rip), %rsi
	addq	%rax, %rsi
	movl	%ebx, %eax
	shll	$13, %eax
	leaq	ist_stacks+4096(%rip), %rdx
	addq	%rax, %rdx
	movq	%rdx, 36(%rsi)
	addq	$4096, %rdx
	movq	%rdx, 44(%rsi)
	movq	%rdx, 4(%rsi)			/* RSP0 */
	movw	$104, 102(%rsi)			/* no I/O bitmap */

	/* GDT: as the loader's, and a TSS descriptor at 0x28 */
	movl	%ebx, %eax
	shll	$6, %eax
	leaq	gdt(%rip), %rdi
	addq	%rax, %rdi
	movabsq	$0x00af9b000000ffff, %rax
	movq	%rax, 0x08(%rdi)
	movabsq	$0x00cf93000000ffff, %rax
	movq	%rax, 0x10(%rdi)
	movabsq	$0x00cff3000000ffff, %rax
	movq	%rax, 0x18(%rdi)
	movabsq	$0x00affb000000ffff, %rax
	movq	%rax, 0x20(%rdi)
	movw	$103, 0x28(%rdi)
	movw	%si, 0x2a(%rdi)
	movq	%rsi, %rax
	shrq	$16, %rax
	movb	%al, 0x2c(%rdi)
	movb	$0x89, 0x2d(%rdi)
	movb	%ah, 0x2f(%rdi)
	shrq	$16, %rax
	movl	%eax, 0x30(%rdi)
	pushq	%rdi
	subq	$8, %rsp
	movw	$0x3f, 6(%rsp)
	lgdt	6(%rsp)
	addq	$16, %rsp
	movl	$0x28, %eax
	ltr	%ax

	/* IDT (SDM Vol. 3, 6.14.1) */
	movl	%ebx, %eax
	imull	$NVEC*16, %eax, %eax
	leaq	idt(%rip), %rdi
	addq	%rax, %rdi
	pushq	%rdi
	subq	$8, %rsp
	movw	$NVEC*16-1, 6(%rsp)
	lidt	6(%rsp)
	addq	$16, %rsp
	leaq	gp_vectors(%rip), %rsi
	xorl	%ecx, %ecx
1:	movl	$0x8e02, %edx			/* interrupt gate, DPL 0, IST 2 */
	cmpl	$32, %ecx
	jb	2f
	movl	$0x8e00, %edx			/* the timer stays on the stack it finds */
2:	cmpl	$1, %ecx
	jne	3f
	movl	$0x8e01, %edx
3:	cmpl	$3, %ecx
	jne	4f
	movl	$0xee01, %edx			/* int3: DPL 3, IST 1 */
4:	movw	%si, 0(%rdi)
	movw	$0x08, 2(%rdi)
	movw	%dx, 4(%rdi)
	movq	%rsi, %rax
	shrq	$16, %rax
	movw	%ax, 6(%rdi)
	shrq	$16, %rax
	movl	%eax, 8(%rdi)
	addq	$16, %rdi
	addq	$16, %rsi
	incl	%ecx
	cmpl	$NVEC, %ecx
	jb	1b
5:	cli
	hlt
	jmp	5b
END _start

/* The gates' targets, 16 bytes apart. Vectors 1 and 3 hand the trap to the
 * host: at the out, RSP points to the frame that the processor pushed. */
FUNC gp_vectors
	.set	v, 0
	.rept	NVEC
	.p2align 4, 0xcc
	.if v == 1
	outb	%al, $0xf1
	iretq
	.elseif v == 3
	outb	%al, $0xf3
	iretq
	.elseif v == 32
	jmp	timer_interrupt
	.else
	.if !(v == 8 || (v >= 10 && v <= 14) || v == 17 || v == 21)
	pushq	$0				/* no error code */
	.endif
	pushq	$v
	jmp	gp_exception
	.endif
	.set	v, v + 1
	.endr
END gp_vectors

/* Stack: vector, error code, RIP, CS, RFLAGS, RSP, SS. Faults in the engine's
 * slots go to the host first, with the interrupted registers. */
FUNC gp_exception
	pushq	%rax
	movq	24(%rsp), %rax
	cmpq	gp_exec_lo(%rip), %rax
	jb	6f
	cmpq	gp_exec_hi(%rip), %rax
	jb	7f
6:	cmpq	gp_uexec_lo(%rip), %rax
	jb	1f
	cmpq	gp_uexec_hi(%rip), %rax
	jae	1f
7:	popq	%rax
	outb	%al, $0xf6
	pushq	%rax
	cmpq	$-1, 8(%rsp)
	je	9f
1:	movq	$user_exit, %rax		/* a user function has returned */
	cmpq	%rax, 24(%rsp)
	jne	5f
	popq	%rax
	jmp	gp_user_exit
5:	movq	8(%rsp), %rax
	movq	%rax, fault_vector(%rip)
	movq	16(%rsp), %rax
	movq	%rax, fault_code(%rip)
	movq	24(%rsp), %rax
	movq	%rax, fault_rip(%rip)
	movq	40(%rsp), %rax
	movq	%rax, fault_flags(%rip)
	movq	%cr2, %rax
	movq	%rax, fault_cr2(%rip)
	incq	fault_count(%rip)
	movq	fault_repair(%rip), %rax
	testq	%rax, %rax			/* a value for rdi, and try again */
	jz	2f
	movq	%rax, %rdi
	movq	$0, fault_repair(%rip)
	jmp	9f
2:	leaq	extable_start(%rip), %rax
3:	cmpq	$0, (%rax)
	je	8f
	pushq	%rbx
	movq	32(%rsp), %rbx
	cmpq	(%rax), %rbx
	popq	%rbx
	je	4f
	addq	$16, %rax
	jmp	3b
4:	movq	8(%rax), %rax
	movq	%rax, 24(%rsp)
	jmp	9f
8:	movl	$0xdead, %eax			/* nobody expects this one */
	outl	%eax, $0xf7
	cli
	hlt
9:	popq	%rax
	addq	$16, %rsp
	iretq
END gp_exception

/* Returns from enter_user. The processor has switched to this vCPU's IST 2,
 * which tells which vCPU it is. */
FUNC gp_user_exit
	movq	%rsp, %rcx
	leaq	ist_stacks(%rip), %rdx
	subq	%rdx, %rcx
	shrq	$13, %rcx
	leaq	user_caller(%rip), %rdx
	movq	(%rdx,%rcx,8), %rsp
	popq	%r15
	popq	%r14
	popq	%r13
	popq	%r12
	popq	%rbp
	popq	%rbx
	ret
END gp_user_exit

/* Breakpoints of the guest's own. */
FUNC gp_foreign_bp
	incq	foreign_count(%rip)
	iretq
END gp_foreign_bp

/* --- functions that must not be probed -------------------------------- */

	.section .noinstr.text, "ax", @progbits
FUNC in_noinstr
	movl	$1, %eax
	ret
END in_noinstr

	.text
FUNC on_blacklist
	movl	$2, %eax
	ret
END on_blacklist
FUNC on_blacklist.isra.0
	movl	$3, %eax
	ret
END on_blacklist.isra.0
FUNC __pfx_target
	nop
	nop
END __pfx_target
FUNC __cfi_target
	nop
	nop
END __cfi_target

	.section _kprobe_blacklist, "a", @progbits
	.quad	on_blacklist

	.text

/* --- the kernel's KUnit targets (lib/test_kprobes.c), own code --------- */

FUNC kprobe_target			/* v / 3 */
	movl	%edi, %eax
	movl	$0xaaaaaaab, %edx
	imulq	%rdx, %rax
	shrq	$33, %rax
	ret
END kprobe_target

FUNC kprobe_recursed_target		/* v / 3 */
	movl	%edi, %eax
	xorl	%edx, %edx
	movl	$3, %ecx
	divl	%ecx
	ret
END kprobe_recursed_target

FUNC kprobe_target2			/* v / 3 + 1 */
	pushq	%rbp
	movq	%rsp, %rbp
	call	kprobe_target
	addl	$1, %eax
	popq	%rbp
	ret
END kprobe_target2

/* --- places to probe, one kind each ------------------------------------ */

FUNC f_endbr				/* rdi + 1 */
	endbr64
	leaq	1(%rdi), %rax
	ret
END f_endbr

FUNC f_boost				/* *rdi + 5: loads cannot be emulated */
	movq	(%rdi), %rax
	addq	$5, %rax
	ret
END f_boost

FUNC f_emulate				/* rdi ^ rsi, on a frame */
	pushq	%rbp
	movq	%rsp, %rbp
	movq	%rdi, %rax
	xorq	%rsi, %rax
	leave
	ret
END f_emulate

FUNC f_step				/* rdi & 0xffff, stored and loaded again */
	movzwl	%di, %eax
	movq	%rax, scratch(%rip)
	movq	scratch(%rip), %rax
	ret
END f_step

FUNC f_sti				/* IF as pushf shows it, by phase: 0b0101 */
	cli
	pushfq
	popq	%rax
	sti
	pushfq
	popq	%rcx
	cli
	pushfq
	popq	%rdx
	sti
	pushfq
	popq	%rsi
	cli
	shrq	$9, %rax
	andl	$1, %eax
	shrq	$8, %rcx
	andl	$2, %ecx
	shrq	$7, %rdx
	andl	$4, %edx
	shrq	$6, %rsi
	andl	$8, %esi
	orl	%ecx, %eax
	orl	%edx, %eax
	orl	%esi, %eax
	ret
END f_sti

FUNC f_if_load				/* IF around a load: 2 (off), 3 (on) */
	cli
	pushfq
	popq	%rdx
	sti
	movq	scratch(%rip), %rcx
	pushfq
	popq	%rax
	cli
	shrq	$9, %rax
	andl	$1, %eax
	shrq	$9, %rdx
	andl	$1, %edx
	addl	$2, %eax
	subl	%edx, %eax
	ret
END f_if_load

/* --- refused, or refused by the kernel --------------------------------- */

FUNC r_ud2
	ud2
END r_ud2
FUNC r_int3
	int3
	movl	$7, %eax
	ret
END r_int3
FUNC r_int
	int	$0x80
	ret
END r_int
FUNC r_int1
	.byte	0xf1
	ret
END r_int1
FUNC r_movss
	movl	%edi, %ss
	ret
END r_movss
FUNC r_kvm
	ud2
	.ascii	"kvm"
	ret
END r_kvm
FUNC r_iret
	iretq
END r_iret
FUNC r_bad				/* 06 is no instruction in 64-bit mode */
	nop
	.byte	0x06
	nop
	ret
END r_bad
FUNC r_long				/* a nop of 15 bytes */
	.byte	0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0
	movl	$15, %eax
	ret
END r_long
FUNC r_far				/* far return to the next instruction */
	pushq	$0x08
	leaq	1f(%rip), %rax
	pushq	%rax
	lretq
1:	movl	$9, %eax
	ret
END r_far
FUNC r_hlt
	hlt
	ret
END r_hlt

/* --- results that a wrong emulation changes ----------------------------- */

FUNC e_loop				/* branch taken? and rcx */
	movq	%rdi, %rcx
	movl	$1, %eax
	loop	1f
	movl	$2, %eax
1:	leaq	(%rax,%rcx,8), %rax
	ret
END e_loop

FUNC e_loop32
	movq	%rdi, %rcx
	movl	$1, %eax
	addr32 loop 1f
	movl	$2, %eax
1:	leaq	(%rax,%rcx,8), %rax
	ret
END e_loop32

FUNC e_loopne				/* with ZF = rsi == 0 */
	movq	%rdi, %rcx
	movl	$1, %eax
	testq	%rsi, %rsi
	loopne	1f
	movl	$2, %eax
1:	leaq	(%rax,%rcx,8), %rax
	ret
END e_loopne

FUNC e_jrcxz
	movq	%rdi, %rcx
	movl	$1, %eax
	jrcxz	1f
	movl	$2, %eax
1:	ret
END e_jrcxz

FUNC e_jecxz
	movq	%rdi, %rcx
	movl	$1, %eax
	jecxz	1f
	movl	$2, %eax
1:	ret
END e_jecxz

FUNC e_retimm				/* what ret 16 leaves on the stack: 0 */
	movq	%rsp, %r8
	pushq	%rdi
	pushq	%rsi
	call	1f
	movq	%r8, %rax
	subq	%rsp, %rax
	movq	%r8, %rsp
	ret
1:	ret	$16
END e_retimm

FUNC e_callreg
	leaq	kprobe_target(%rip), %rax
	pushq	%rbx
	call	*%rax
	popq	%rbx
	ret
END e_callreg

FUNC e_callmem
	pushq	%rbx
	call	*fnptr(%rip)
	popq	%rbx
	ret
END e_callmem

FUNC e_callstack			/* call *(%rsp) reads the target before the push: 5 */
	leaq	1f(%rip), %rax
	pushq	%rax
	call	*(%rsp)
	ud2
1:	popq	%rcx				/* the return address, 2 bytes of ud2 before 1 */
	popq	%rdx
	leaq	3(%rdx), %rax
	subq	%rcx, %rax
	ret
END e_callstack

FUNC e_callprefix			/* REX.W call: the return address is behind all 6 bytes */
	pushq	%rbx
	.byte	0x48
	call	kprobe_target
	popq	%rbx
	ret
END e_callprefix

FUNC e_jumptable			/* 10, 11, 12 for rdi = 0, 1, 2; else -1 */
	cmpq	$2, %rdi
	ja	4f
	leaq	jumptable(%rip), %rax
	jmp	*(%rax,%rdi,8)
1:	movl	$10, %eax
	ret
2:	movl	$11, %eax
	ret
3:	movl	$12, %eax
	ret
4:	movq	$-1, %rax
	ret
	.pushsection .rodata
	.p2align 3
jumptable:
	.quad	1b, 2b, 3b
	.popsection
END e_jumptable

FUNC e_jmpreg
	leaq	1f(%rip), %rax
	jmp	*%rax
	ud2
1:	movl	$21, %eax
	ret
END e_jmpreg

FUNC e_cond				/* one bit per condition code, for the flags in rdi */
	andl	$0x8d5, %edi			/* the arithmetic flags only */
	xorl	%eax, %eax
	pushq	%rdi
	popfq
	jo	1f
	leal	0x1(%rax), %eax
1:	jno	1f
	leal	0x2(%rax), %eax
1:	jb	1f
	leal	0x4(%rax), %eax
1:	jae	1f
	leal	0x8(%rax), %eax
1:	je	1f
	leal	0x10(%rax), %eax
1:	jne	1f
	leal	0x20(%rax), %eax
1:	jbe	1f
	leal	0x40(%rax), %eax
1:	ja	1f
	leal	0x80(%rax), %eax
1:	js	1f
	leal	0x100(%rax), %eax
1:	jns	1f
	leal	0x200(%rax), %eax
1:	jp	1f
	leal	0x400(%rax), %eax
1:	jnp	1f
	leal	0x800(%rax), %eax
1:	jl	1f
	leal	0x1000(%rax), %eax
1:	jge	1f
	leal	0x2000(%rax), %eax
1:	{disp32} jle 1f
	leal	0x4000(%rax), %eax
1:	{disp32} jg 1f
	leal	0x8000(%rax), %eax
1:	ret
END e_cond

FUNC e_flags				/* flags through every kind of step: carry chains */
	movq	%rdi, %rax
	movq	%rsi, %rdx
	stc
	adcq	%rdx, %rax
	adcq	$0, %rdx
	rcrq	$1, %rax
	sbbq	%rdx, %rax
	movq	scratch(%rip), %rcx		/* stepped or boosted: must keep flags */
	adcq	%rax, %rdx
	pushfq
	popq	%rcx
	andl	$0x8d5, %ecx
	cmc
	setc	%cl
	movq	%rdx, %rsi
	negq	%rsi
	sete	%ch
	shlq	$13, %rdx
	xorq	%rdx, %rax
	bswapq	%rax
	xorq	%rcx, %rax
	ret
END e_flags

FUNC e_stack				/* push and pop in all forms */
	pushq	%rbp
	movq	%rsp, %rbp
	pushq	$-7
	pushq	$0x12345678
	pushq	scratch(%rip)
	pushq	%rsp
	popq	%rax
	subq	%rsp, %rax			/* 0: rsp from before the push */
	popq	%rcx
	addq	%rcx, %rax
	pushw	%di
	popw	%cx
	addw	%cx, %ax
	popq	%rdx
	xorq	%rdx, %rax
	popq	scratch2(%rip)
	addq	scratch2(%rip), %rax
	enter	$32, $0
	movq	%rdi, -8(%rbp)
	addq	-8(%rbp), %rax
	leave
	movq	%rsp, %rcx
	leave
	subq	%rsp, %rcx			/* -16: rbp and the frame are gone */
	addq	%rcx, %rax
	ret
END e_stack

FUNC e_riprel				/* operands relative to RIP, all directions */
	movq	%rdi, scratch2(%rip)
	addq	$3, scratch2(%rip)
	movl	$0x11223344, scratch2+4(%rip)
	leaq	scratch2(%rip), %rax
	subq	%rax, scratch2(%rip)
	movq	scratch2(%rip), %rcx
	addq	%rcx, %rax
	cmpq	%rax, scratch2(%rip)
	sbbq	$0, %rax
	lock xaddq %rax, scratch2(%rip)
	movq	scratch2(%rip), %rcx
	leaq	scratch2(%rip), %rdx
	subq	%rdx, %rcx			/* independent of where the image is */
	subq	%rdx, %rcx
	leaq	(%rcx,%rdx), %rcx
	xorl	%eax, %eax
	movl	%ecx, %eax
	ret
END e_riprel

FUNC e_string				/* rep stos, movs, lods over a buffer */
	cld
	movq	%rdi, %rax
	leaq	buffer(%rip), %rdi
	movl	$16, %ecx
	rep stosb
	leaq	buffer(%rip), %rsi
	leaq	buffer+32(%rip), %rdi
	movl	$2, %ecx
	rep movsq
	leaq	buffer+32(%rip), %rsi
	lodsq
	addq	%rsi, %rax
	leaq	buffer(%rip), %rcx
	subq	%rcx, %rax
	ret
END e_string

FUNC e_arith				/* mul, div, shifts, moves between widths */
	movq	%rdi, %rax
	mulq	%rsi
	addq	%rdx, %rax
	xorl	%edx, %edx
	movl	$7, %ecx
	divq	%rcx
	imulq	$31, %rdx, %rdx
	xorq	%rdx, %rax
	rolq	$9, %rax
	movsbl	%al, %ecx
	movslq	%ecx, %rcx
	addq	%rcx, %rax
	sarq	$3, %rcx
	cmovsq	%rdi, %rcx
	notq	%rcx
	xchgq	%rcx, %rax
	subq	%rcx, %rax
	cqto
	addq	%rdx, %rax
	ret
END e_arith

/* --- faults --------------------------------------------------------------- */

	.macro	EXTABLE insn, fixup
	.pushsection extable, "a", @progbits
	.quad	\insn, \fixup
	.popsection
	.endm

FUNC x_load				/* *rdi, or -14 */
1:	movq	(%rdi), %rax
	ret
2:	movq	$-14, %rax
	ret
	EXTABLE	1b, 2b
END x_load

FUNC x_load_if				/* the same with interrupts on: IF must survive the fault */
	sti
	nop
1:	movq	(%rdi), %rax
	cli
	ret
2:	pushfq
	popq	%rax
	cli
	andl	$0x200, %eax
	ret
	EXTABLE	1b, 2b
END x_load_if

FUNC x_push				/* push on the stack rdi, or -14 */
	movq	%rsp, %rdx
	movq	%rdi, %rsp
1:	pushq	%rdx
	popq	%rax
	xorl	%eax, %eax
	movq	%rdx, %rsp
	ret
2:	movq	%rdx, %rsp
	movq	$-14, %rax
	ret
	EXTABLE	1b, 2b
END x_push

FUNC x_jmp				/* jmp *(rdi), or -14 */
1:	jmp	*(%rdi)
2:	movq	$-14, %rax
	ret
	EXTABLE	1b, 2b
END x_jmp

FUNC x_target
	movl	$33, %eax
	ret
END x_target

FUNC x_div				/* rdi / rsi, or -8 */
	movq	%rdi, %rax
	xorl	%edx, %edx
1:	divq	%rsi
	ret
2:	movq	$-8, %rax
	ret
	EXTABLE	1b, 2b
END x_div

/* --- load ----------------------------------------------------------------- */

FUNC hot				/* rdi + 1 */
	leaq	1(%rdi), %rax
	ret
END hot

FUNC hot_load				/* rdi + *const_seven */
	movq	const_seven(%rip), %rax
	addq	%rdi, %rax
	ret
END hot_load

FUNC work				/* rdi rounds of hot and hot_load: 8 * rdi */
	pushq	%rbx
	movq	%rdi, %rbx
	xorl	%edi, %edi
	testq	%rbx, %rbx
	jz	2f
1:	call	hot
	movq	%rax, %rdi
	call	hot_load
	movq	%rax, %rdi
	decq	%rbx
	jnz	1b
2:	movq	%rdi, %rax
	popq	%rbx
	ret
END work

FUNC work_if				/* work with interrupts on */
	sti
	call	work
	cli
	ret
END work_if

FUNC timer_interrupt
	pushq	%rax
	pushq	%rdi
	lock incq ticks(%rip)
	movq	$41, %rdi
	call	tick_work
	popq	%rdi
	popq	%rax
	iretq
END timer_interrupt

FUNC tick_work				/* rdi + 1, over a load */
	movq	const_one(%rip), %rax
	addq	%rdi, %rax
	ret
END tick_work

/* --- user code --------------------------------------------------------------- */

/* enter_user(fn, a, b, cpu): fn(a, b) at CPL 3 with interrupts on. */
FUNC enter_user
	pushq	%rbx
	pushq	%rbp
	pushq	%r12
	pushq	%r13
	pushq	%r14
	pushq	%r15
	leaq	user_caller(%rip), %rax
	movq	%rsp, (%rax,%rcx,8)
	leaq	user_stacks+4096-8(%rip), %rax
	shlq	$12, %rcx
	addq	%rcx, %rax
	leaq	user_exit, %rcx
	movq	%rcx, (%rax)			/* where fn returns to */
	pushq	$0x1b
	pushq	%rax
	pushq	$0x202
	pushq	$0x23
	pushq	%rdi
	movq	%rsi, %rdi
	movq	%rdx, %rsi
	iretq
END enter_user

	.section .user.text, "ax", @progbits
/* An exception is the one way out that every host delivers. */
FUNC user_exit
	ud2
END user_exit

FUNC u_hot				/* rdi + 1 */
	leaq	1(%rdi), %rax
	ret
END u_hot

FUNC u_load				/* *rdi + rsi */
	movq	(%rdi), %rax
	addq	%rsi, %rax
	ret
END u_load

FUNC u_frame				/* u_hot(u_hot(rdi)) + rsi, on a frame */
	pushq	%rbp
	movq	%rsp, %rbp
	pushq	%rsi
	call	u_hot
	movq	%rax, %rdi
	leaq	u_hot, %rdx
	call	*%rdx
	popq	%rsi
	addq	%rsi, %rax
	leave
	ret
END u_frame

FUNC u_work				/* rdi rounds of u_hot and u_load: 8 * rdi */
	pushq	%rbx
	movq	%rdi, %rbx
	xorl	%eax, %eax
	testq	%rbx, %rbx
	jz	2f
1:	movq	%rax, %rdi
	call	u_hot
	movq	%rax, %rsi
	leaq	user_seven, %rdi
	call	u_load
	decq	%rbx
	jnz	1b
2:	popq	%rbx
	ret
END u_work

FUNC u_fault				/* *rdi, or -14 */
1:	movq	(%rdi), %rax
	ret
2:	movq	$-14, %rax
	ret
	EXTABLE	1b, 2b
END u_fault

FUNC u_push				/* push on the stack rdi, or -14 */
	movq	%rsp, %rdx
	movq	%rdi, %rsp
1:	pushq	%rdx
	xorl	%eax, %eax
	movq	%rdx, %rsp
	ret
2:	movq	%rdx, %rsp
	movq	$-14, %rax
	ret
	EXTABLE	1b, 2b
END u_push

FUNC u_cli				/* -14: not allowed at CPL 3 */
1:	cli
	ret
2:	movq	$-14, %rax
	ret
	EXTABLE	1b, 2b
END u_cli

	.section .user.data, "aw", @progbits
	.p2align 3
VAR user_seven, 7
	.section .user.bss, "aw", @nobits
	.p2align 12
user_stacks: .skip MAXCPU * 4096

	.text
/* Two functions of one name, in two scopes. */
	.p2align 4, 0xcc
	.type	name_show, @function
name_show:
	movl	$1, %eax
	ret
	.size	name_show, . - name_show

/* --- data ------------------------------------------------------------------ */

	.section .rodata
	.p2align 3
VAR const_one, 1
VAR const_seven, 7

	.data
	.p2align 3
VAR scratch, 0x5555aaaa5555aaaa
VAR scratch2
VAR fnptr, kprobe_target
VAR fault_vector
VAR fault_code
VAR fault_rip
VAR fault_flags
VAR fault_cr2
VAR fault_count
VAR fault_repair
VAR foreign_count
VAR ticks
VAR gp_exec_lo
VAR gp_exec_hi
VAR gp_uexec_lo
VAR gp_uexec_hi
	.globl	buffer
	.type	buffer, @object
	.size	buffer, 64
buffer:	.skip	64

	.bss
	.globl	user_caller
	.type	user_caller, @object
	.size	user_caller, MAXCPU * 8
user_caller: .skip MAXCPU * 8
	.p2align 12
	.globl	ist_stacks
	.type	ist_stacks, @object
	.size	ist_stacks, MAXCPU * 8192
ist_stacks: .skip MAXCPU * 8192
tss:	.skip	MAXCPU * 128
gdt:	.skip	MAXCPU * 64
idt:	.skip	MAXCPU * NVEC * 16
