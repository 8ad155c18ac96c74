# A guest of other VMMs: a multiboot image that enters 64-bit mode and counts calls
# at CPL 3 for ever. outer calls middle, and middle calls hot; each has a frame.
	.set flags, 1 << 16		# addresses follow
	.section .header, "a"
	.align 4
header:	.long 0x1badb002, flags, -(0x1badb002 + flags)
	.long header, header, data_end, bss_end, start

	.text
	.code32
	.globl start
start:	cli
	# One GiB, identity-mapped by pages of 2 MiB for user code.
	movl $pdpt + 7, pml4
	movl $pd + 7, pdpt
	mov $pd, %edi
	mov $0x87, %eax
1:	mov %eax, (%edi)
	add $0x200000, %eax
	add $8, %edi
	cmp $pd + 4096, %edi
	jne 1b
	mov %cr4, %eax
	or $0x20, %eax			# PAE
	mov %eax, %cr4
	mov $pml4, %eax
	mov %eax, %cr3
	mov $0xc0000080, %ecx		# EFER: LME, NXE
	rdmsr
	or $0x900, %eax
	wrmsr
	mov %cr0, %eax
	or $0x80000001, %eax		# PG, PE
	mov %eax, %cr0
	lgdt gdtr
	ljmp $8, $long_mode

	.code64
long_mode:
	mov $0x10, %eax
	mov %eax, %ds
	mov %eax, %es
	mov %eax, %ss
	mov $stack_top, %rsp
	pushq $0x23
	pushq $stack_top - 4096
	pushq $2
	pushq $0x1b
	pushq $outer
	iretq

	.macro function name
	.globl \name
	.type \name, @function
	.align 16
\name:	.cfi_startproc
	push %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	mov %rsp, %rbp
	.cfi_def_cfa_register %rbp
	.endm
	.macro end name
	.cfi_endproc
	.size \name, . - \name
	.endm

	function outer
	.cfi_undefined %rip
2:	mov $0x1111, %ebx
	call middle
	incq calls
	jmp 2b
	end outer

	function middle
	call hot
	pop %rbp
	.cfi_def_cfa %rsp, 8
	ret
	end middle

	function hot
	mov $1000, %ecx
3:	dec %ecx
	jnz 3b
	pop %rbp
	.cfi_def_cfa %rsp, 8
	ret
	end hot

	.data
	.align 16
gdt:	.quad 0, 0x00af9a000000ffff, 0x00cf92000000ffff, 0x00affa000000ffff, 0x00cff2000000ffff
gdtr:	.word . - gdt - 1
	.quad gdt
	.align 8
	.globl calls
	.type calls, @object
	.size calls, 8
calls:	.quad 0

	.bss
	.align 4096
pml4:	.skip 4096
pdpt:	.skip 4096
pd:	.skip 4096
	.skip 8192
stack_top:
	.section .note.GNU-stack, "", @progbits
