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

/* If the instruction at from faults, continue at to (see fault.c). */
.macro EX_TABLE from, to
	.pushsection __ex_table, "a"
	.quad \from, \to
	.popsection
.endm

/* Call frame information is for debuggers and unwinders, not for the guest. */
.cfi_sections .debug_frame

#endif
