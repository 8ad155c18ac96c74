/*
 * What a probe that stays in the guest costs at best: user_hot again, three
 * times, with detours written by hand. Benchmarks of compiled probes compare
 * with these in the same run (bench_mailbox.fn).
 */
#include "asm.h"

#define RED_ZONE 128
#define RECORD_SHIFT 6		/* 64 bytes per record */
#define RECORDS 4096

	.text

.macro HOT_HEAD
	movq %rdi, %rdx
	shlq $5, %rdx
.endm

.macro HOT_TAIL
	subq %rdi, %rdx
	addq %rsi, %rdx
	movq %rdx, %rax
	shrq $7, %rax
	xorq %rdx, %rax
	ret
.endm

	.p2align 4, 0xcc
/* No probe. */
FUNC user_floor_plain
	HOT_HEAD
	HOT_TAIL
ENDFUNC user_floor_plain

	.p2align 4, 0xcc
/* A jump to a detour that counts. */
FUNC user_floor_count
	{disp32} jmp user_floor_count_detour
	.byte 0xcc, 0xcc
.Lcount_back:
	HOT_TAIL
ENDFUNC user_floor_count

	.p2align 4, 0xcc
FUNC user_floor_count_detour
	leaq -RED_ZONE(%rsp), %rsp
	.cfi_adjust_cfa_offset RED_ZONE
	pushfq
	.cfi_adjust_cfa_offset 8
	lock incq user_floor_counter(%rip)
	popfq
	.cfi_adjust_cfa_offset -8
	leaq RED_ZONE(%rsp), %rsp
	.cfi_adjust_cfa_offset -RED_ZONE
	HOT_HEAD
	jmp .Lcount_back
ENDFUNC user_floor_count_detour

	.p2align 4, 0xcc
/* A jump to a detour that writes a record: the time, six arguments, a number. */
FUNC user_floor_record
	{disp32} jmp user_floor_record_detour
	.byte 0xcc, 0xcc
.Lrecord_back:
	HOT_TAIL
ENDFUNC user_floor_record

	.p2align 4, 0xcc
FUNC user_floor_record_detour
	leaq -RED_ZONE(%rsp), %rsp
	.cfi_adjust_cfa_offset RED_ZONE
	pushfq
	.cfi_adjust_cfa_offset 8
	.irp r, rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11
	PUSH %\r
	.endr
	movl $1, %r10d
	lock xaddq %r10, user_floor_head(%rip)
	movq %r10, %r11
	andl $RECORDS - 1, %r11d
	shll $RECORD_SHIFT, %r11d
	leaq user_floor_ring(%rip), %rax
	addq %rax, %r11
	movq %rdi, 8(%r11)
	movq %rsi, 16(%r11)
	movq %rdx, 24(%r11)
	movq %rcx, 32(%r11)
	movq %r8, 40(%r11)
	movq %r9, 48(%r11)
	movq %r10, 56(%r11)
	rdtsc
	shlq $32, %rdx
	orq %rdx, %rax
	movq %rax, (%r11)
	.irp r, r11, r10, r9, r8, rdi, rsi, rdx, rcx, rax
	POP %\r
	.endr
	popfq
	.cfi_adjust_cfa_offset -8
	leaq RED_ZONE(%rsp), %rsp
	.cfi_adjust_cfa_offset -RED_ZONE
	HOT_HEAD
	jmp .Lrecord_back
ENDFUNC user_floor_record_detour

	.bss
	.balign 64
	.globl user_floor_counter, user_floor_head, user_floor_ring
	.type user_floor_counter, @object
	.size user_floor_counter, 8
user_floor_counter:
	.skip 64
	.type user_floor_head, @object
	.size user_floor_head, 8
user_floor_head:
	.skip 64
	.type user_floor_ring, @object
	.size user_floor_ring, RECORDS << RECORD_SHIFT
user_floor_ring:
	.skip RECORDS << RECORD_SHIFT
