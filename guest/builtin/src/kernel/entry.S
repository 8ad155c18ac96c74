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
	movq %rdi, %rbx
	call check_boot_info	/* the address of this vCPU's struct percpu */
	leaq STACK_SIZE - 16(%rax), %rsp
	movq %rbx, %rdi
	cmpl $0, 24(%rdi)	/* boot_info.cpu */
	jne 1f
	call start_kernel
	ud2
1:	call start_secondary
	ud2
ENDFUNC _start

	.section .rodata.kernel, "a"
	.balign 8
	.globl percpu
	.type percpu, @object
	.size percpu, 8
percpu:
	.quad image_end

	/* What builtin_test.go compares with the sources. */

	.section .note.guestprobe, "a", @note
	.balign 4
	.long 2f - 1f, 4f - 3f, 1
1:	.asciz "guestprobe"
2:	.balign 4
3:	.incbin "sources.sha256"
4:	.balign 4
