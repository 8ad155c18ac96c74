/* Faults at CPL3 that the kernel fixes up by the exception table. */
#include "asm.h"

#define EFAULT 14

	.text

/* s64 user_fault_load(const void *p): *p, or -EFAULT. */
FUNC user_fault_load
1:	movq (%rdi), %rax
	ret
2:	movq $-EFAULT, %rax
	ret
	EX_TABLE 1b, 2b
ENDFUNC user_fault_load

/* s64 user_fault_divide(u64 a, u64 b): a / b, or -EFAULT. */
FUNC user_fault_divide
	movq %rdi, %rax
	xorl %edx, %edx
1:	divq %rsi
	ret
2:	movq $-EFAULT, %rax
	ret
	EX_TABLE 1b, 2b
ENDFUNC user_fault_divide

/* u64 user_own_int3(u64 a): a + 3, behind a breakpoint of the guest's own. */
FUNC user_own_int3
	leaq 3(%rdi), %rax
	int3
	ret
ENDFUNC user_own_int3

/* s64 user_fault_privileged(void): -EFAULT, by cli at CPL3 (#GP). */
FUNC user_fault_privileged
1:	cli
	xorl %eax, %eax
	ret
2:	movq $-EFAULT, %rax
	ret
	EX_TABLE 1b, 2b
ENDFUNC user_fault_privileged
