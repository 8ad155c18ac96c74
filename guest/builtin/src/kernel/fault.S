/*
 * Instructions that fault on purpose, each with an entry in __ex_table: pairs
 * of 64-bit addresses {faulting instruction, where to continue}.
 */
#include "asm.h"

#define EFAULT 14

	.text

/* s64 fault_load(const void *p): *p, or -EFAULT. */
FUNC fault_load
	FRAME
1:	movq (%rdi), %rax
	UNFRAME popq %rbp
2:	movq $-EFAULT, %rax
	UNFRAME popq %rbp
	EX_TABLE 1b, 2b
ENDFUNC fault_load

/* s64 fault_store(void *p): 0, or -EFAULT. The first instruction faults. */
FUNC fault_store
1:	movq $0, (%rdi)
	xorl %eax, %eax
	ret
2:	movq $-EFAULT, %rax
	ret
	EX_TABLE 1b, 2b
ENDFUNC fault_store

/* s64 fault_gp(void): -EFAULT, by a load from a non-canonical address (#GP). */
FUNC fault_gp
	movabsq $0x8000000000000000, %rax
1:	movq 8(%rax), %rax
	ret
2:	movq $-EFAULT, %rax
	ret
	EX_TABLE 1b, 2b
ENDFUNC fault_gp

/* s64 fault_divide(u64 a, u64 b): a / b, or -EFAULT (#DE). */
FUNC fault_divide
	movq %rdi, %rax
	xorl %edx, %edx
1:	divq %rsi
	ret
2:	movq $-EFAULT, %rax
	ret
	EX_TABLE 1b, 2b
ENDFUNC fault_divide

/* s64 fault_ud(void): -EFAULT, by ud2 (#UD). */
FUNC fault_ud
	nop
1:	ud2
2:	movq $-EFAULT, %rax
	ret
	EX_TABLE 1b, 2b
ENDFUNC fault_ud

/* long copy_bytes_fixup(void *dst, const void *src, u64 n): bytes not copied. */
FUNC copy_bytes_fixup
	FRAME
	movq %rdx, %rcx
1:	rep movsb
2:	movq %rcx, %rax
	UNFRAME popq %rbp
	EX_TABLE 1b, 2b
ENDFUNC copy_bytes_fixup

/*
 * long strncpy_fixup(char *dst, const char *src, u64 n): length without the
 * NUL, n if there is none in n bytes, or -EFAULT.
 */
FUNC strncpy_fixup
	FRAME
	xorl %eax, %eax
	testq %rdx, %rdx
	jz 3f
1:	movb (%rsi,%rax), %cl
	movb %cl, (%rdi,%rax)
	testb %cl, %cl
	jz 3f
	incq %rax
	cmpq %rdx, %rax
	jb 1b
3:	UNFRAME popq %rbp
2:	movq $-EFAULT, %rax
	UNFRAME popq %rbp
	EX_TABLE 1b, 2b
ENDFUNC strncpy_fixup
