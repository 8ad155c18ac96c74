/* Where a guest that is one of GDB's test programs begins, at CPL 0. Its stack is its own: that of the loader is in no RAM, and cannot be watched. */
	.globl	_start
_start:
	mov	$stack, %rsp
	xor	%ebp, %ebp
	xor	%edi, %edi
	call	main
	mov	%eax, %edi
	call	exit
	.bss
	.balign	16
	.skip	1 << 16
stack:
	.section .note.GNU-stack, "", @progbits
