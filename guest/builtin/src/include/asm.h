/* Macros for the assembly files. */
#ifndef GP_ASM_H
#define GP_ASM_H

#include "abi.h"

/* Function with symbol, size and call frame information. */
.macro FUNC name
	.globl \name
	.type \name, @function
\name:
	.cfi_startproc
.endm

.macro ENDFUNC name
	.cfi_endproc
	.size \name, . - \name
.endm

/*
 * A frame with RBP, after which the canonical frame address does not depend on
 * RSP, and the way out of it. UNFRAME may come before each of several returns.
 */
.macro FRAME
	pushq %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset rbp, -16
	movq %rsp, %rbp
	.cfi_def_cfa_register rbp
.endm

.macro UNFRAME insn:vararg
	.cfi_remember_state
	\insn
	.cfi_def_cfa rsp, 8
	.cfi_restore rbp
	ret
	.cfi_restore_state
.endm

/* A saved register on the stack, in a function without a frame. */
.macro SAVE reg
	pushq %\reg
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset \reg, 0
.endm

.macro RESTORE reg
	popq %\reg
	.cfi_adjust_cfa_offset -8
	.cfi_same_value \reg
.endm

/* A temporary on the stack. */
.macro PUSH operand:vararg
	pushq \operand
	.cfi_adjust_cfa_offset 8
.endm

.macro POP operand:vararg
	popq \operand
	.cfi_adjust_cfa_offset -8
.endm

/* If the instruction at from faults, continue at to (see fault.c). */
.macro EX_TABLE from, to
	.pushsection __ex_table, "a"
	.quad \from, \to
	.popsection
.endm

/* Call frame information is for debuggers and unwinders, not for the guest. */
.cfi_sections .debug_frame

#endif
