/* String instructions, locked ones, and ways to address memory. */
#include "asm.h"
#include "shapes.h"

	.text

/*
 * u64 string_ops(u8 *dst, const u8 *src, u64 n), n > 0: copies src to dst
 * forwards, compares, finds the first 0x7f, adds up the bytes, and overwrites
 * dst with the low byte of the sum. Returns sum + 0x10000 * (index of 0x7f or
 * n) + 0x100000000 if the copy compared equal.
 */
FUNC SHAPE(string_ops)
	FRAME
	pushq %rbx
	.cfi_offset rbx, -24
	movq %rdi, %r8
	movq %rsi, %r9
	movq %rdx, %rcx
	rep movsb
	movq %r8, %rdi
	movq %r9, %rsi
	movq %rdx, %rcx
	xorl %ebx, %ebx
	repe cmpsb
	sete %bl
	shlq $32, %rbx
	movq %r8, %rdi
	movq %rdx, %rcx
	movb $0x7f, %al
	repne scasb
	movq %rdx, %rax
	jne 1f
	subq %rcx, %rax
	decq %rax
1:	shlq $16, %rax
	addq %rax, %rbx
	movq %r9, %rsi
	movq %rdx, %rcx
	xorl %eax, %eax
	xorl %r10d, %r10d
2:	lodsb
	addl %eax, %r10d
	loop 2b
	leaq (%rbx,%r10), %rbx
	movl %r10d, %eax
	leaq -1(%r8,%rdx), %rdi
	movq %rdx, %rcx
	std
	rep stosb
	cld
	movq %rbx, %rax
	popq %rbx
	.cfi_restore rbx
	UNFRAME leave
ENDFUNC SHAPE(string_ops)

/*
 * u64 lock_forms(u64 cells[2], u64 a): cells[0] takes part in every locked
 * instruction; returns what xadd, xchg and cmpxchg saw.
 */
FUNC SHAPE(lock_forms)
	lock addq %rsi, (%rdi)
	lock incq (%rdi)
	lock negq (%rdi)
	lock orq $0x10, (%rdi)
	lock btcq $7, (%rdi)
	movl $3, %edx
	lock xaddq %rdx, (%rdi)
	movq %rdx, %rcx
	xchgq %rdx, 8(%rdi)
	movq (%rdi), %rax
	lock cmpxchgq %rsi, (%rdi)
	jne 1f
	addq %rcx, %rax
	addq %rdx, %rax
	ret
1:	xorl %eax, %eax
	ret
ENDFUNC SHAPE(lock_forms)

/* u64 rip_forms(a): everything about rip_cell is RIP-relative. */
FUNC SHAPE(rip_forms)
	movq %rdi, SHAPE(rip_cell)(%rip)
	addq $0x11, SHAPE(rip_cell)(%rip)
	cmpb $0, SHAPE(rip_cell)(%rip)
	setne %al
	movzbl %al, %eax
	xorq SHAPE(rip_cell)(%rip), %rax
	leaq SHAPE(rip_cell)(%rip), %rdx
	PUSH (%rdx)
	POP SHAPE(rip_cell)+8(%rip)
	addq SHAPE(rip_cell)+8(%rip), %rax
	imulq $3, SHAPE(rip_cell)(%rip), %rdx
	addq %rdx, %rax
	movl $0x1234, SHAPE(rip_cell)+8(%rip)
	lock addq %rdi, SHAPE(rip_total)(%rip)
	ret
ENDFUNC SHAPE(rip_forms)

/*
 * u64 segment_load(const u64 cells[2]): cells[0] + cells[1], through prefixes
 * that mean nothing in 64-bit mode and through a null FS.
 */
FUNC SHAPE(segment_load)
	movq %ds:(%rdi), %rax
	addq %es:8(%rdi), %rax
	subq %fs:8(%rdi), %rax
	.byte 0x2e
	addq 8(%rdi), %rax
	ret
ENDFUNC SHAPE(segment_load)

/*
 * u64 regs_pattern(u64 rounds): gives every register but RSP a value, lets time
 * pass, and returns how many of them changed. Preemption and probes must not
 * show.
 */
FUNC SHAPE(regs_pattern)
	SAVE rbp
	SAVE rbx
	SAVE r12
	SAVE r13
	SAVE r14
	SAVE r15
	movl $0x1b0, %ebp
	movl $0x1b1, %ebx
	movl $0x1b2, %edx
	movl $0x1b3, %esi
	movl $0x1b8, %r8d
	movl $0x1b9, %r9d
	movl $0x1ba, %r10d
	movl $0x1bb, %r11d
	movl $0x1bc, %r12d
	movl $0x1bd, %r13d
	movl $0x1be, %r14d
	movl $0x1bf, %r15d
	movl $0x1b4, %eax
	movq %rdi, %rcx
1:	nop
	loop 1b
	subq $0x1b4, %rax
	subq $0x1b0, %rbp
	orq %rbp, %rax
	subq $0x1b1, %rbx
	orq %rbx, %rax
	subq $0x1b2, %rdx
	orq %rdx, %rax
	subq $0x1b3, %rsi
	orq %rsi, %rax
	subq $0x1b8, %r8
	orq %r8, %rax
	subq $0x1b9, %r9
	orq %r9, %rax
	subq $0x1ba, %r10
	orq %r10, %rax
	subq $0x1bb, %r11
	orq %r11, %rax
	subq $0x1bc, %r12
	orq %r12, %rax
	subq $0x1bd, %r13
	orq %r13, %rax
	subq $0x1be, %r14
	orq %r14, %rax
	subq $0x1bf, %r15
	orq %r15, %rax
	RESTORE r15
	RESTORE r14
	RESTORE r13
	RESTORE r12
	RESTORE rbx
	RESTORE rbp
	ret
ENDFUNC SHAPE(regs_pattern)

	.bss
	.balign 64
	.globl SHAPE(rip_cell), SHAPE(rip_total)
	.type SHAPE(rip_cell), @object
	.size SHAPE(rip_cell), 16
SHAPE(rip_cell):
	.skip 16
	.type SHAPE(rip_total), @object
	.size SHAPE(rip_total), 8
SHAPE(rip_total):
	.skip 8
