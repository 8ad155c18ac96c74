/* The user program's stacks and its way into the kernel. */
#include "asm.h"
#include "user.h"

	.text

/*
 * s64 user_syscall(nr, a, b, c, d): moves the arguments of a C call to where
 * the kernel expects them.
 */
FUNC user_syscall
	movq %rdi, %rax
	movq %rsi, %rdi
	movq %rdx, %rsi
	movq %rcx, %rdx
	movq %r8, %rcx
1:	int $VECTOR_SYSCALL
	ret
ENDFUNC user_syscall

	.section .rodata.kernel, "a"
	.balign 8
	.globl user_syscall_insn
	.type user_syscall_insn, @object
	.size user_syscall_insn, 8
user_syscall_insn:
	.quad 1b

	.bss
	.balign STACK_SIZE
	.globl user_stacks
	.type user_stacks, @object
	.size user_stacks, MAX_CPUS * USER_TASKS * STACK_SIZE
user_stacks:
	.skip MAX_CPUS * USER_TASKS * STACK_SIZE

/* For the kernel, whose code model does not reach this far. */
	.section .rodata.kernel, "a"
	.balign 8
	.globl user_entries, user_stacks_base
	.type user_entries, @object
	.size user_entries, 8 * USER_TASKS
user_entries:
	.quad user_main, user_sse_main, user_bench_main
	.type user_stacks_base, @object
	.size user_stacks_base, 8
user_stacks_base:
	.quad user_stacks
