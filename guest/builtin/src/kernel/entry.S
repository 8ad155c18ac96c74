/*
 * Where every vCPU starts: long mode, CPL0, paging on, interrupts off, RDI at
 * this vCPU's boot-info block. What runs here becomes the vCPU's idle task, on a
 * stack of the kernel's own kind instead of the loader's.
 */
#include "asm.h"

	.section .entry.text, "ax"

FUNC _start
	xorl %ebp, %ebp		/* the end of every frame-pointer chain */
	cld
	movl 24(%rdi), %eax	/* boot_info.cpu */
	cmpl $MAX_CPUS, %eax
	jae 2f
	movl %eax, %ecx
	shlq $13, %rcx		/* STACK_SIZE */
	leaq idle_stacks + STACK_SIZE - 16(%rcx), %rsp
	testl %eax, %eax
	jnz 1f
	call start_kernel
	ud2
1:	call start_secondary
	ud2
2:	movl $EXIT_BOOT, %eax
	outl %eax, $PORT_EXIT
	cli
	hlt
	jmp 2b
ENDFUNC _start

	.bss
	.balign STACK_SIZE
	.globl idle_stacks
	.type idle_stacks, @object
	.size idle_stacks, MAX_CPUS * STACK_SIZE
idle_stacks:
	.skip MAX_CPUS * STACK_SIZE

	/* What builtin_test.go compares with the sources. */

	.section .note.guestprobe, "a", @note
	.balign 4
	.long 2f - 1f, 4f - 3f, 1
1:	.asciz "guestprobe"
2:	.balign 4
3:	.incbin "sources.sha256"
4:	.balign 4
