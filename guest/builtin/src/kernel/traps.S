/*
 * Trap stubs. Nothing in this file may be probed: it is what brings the traps
 * of probes to the host.
 */
#include "asm.h"

	.section .entry.text, "ax"

/*
 * Call frame information inside a trap: the hardware frame {RIP, CS, RFLAGS,
 * RSP, SS} starts `above` bytes over RSP. The canonical frame address is the end
 * of it, and unlike after a call RSP is not that address but on the stack too.
 */
.macro TRAP_FRAME above
	.cfi_signal_frame
	.cfi_def_cfa rsp, \above + 40
	.cfi_offset rip, -40
	.cfi_offset rsp, -16
.endm

.macro SAVE_REGS
	.irp r, rdi, rsi, rdx, rcx, rax, r8, r9, r10, r11, rbx, rbp, r12, r13, r14, r15
	SAVE \r
	.endr
	cld
	movq %rsp, %rdi
.endm

/*
 * #BP. On hosts that do not intercept int3 this stub hands it over. The host
 * finds the hardware frame at RSP and all general registers as interrupted; it
 * changes them and lets iretq resume. It runs on an IST stack, so that the
 * frame is out of the way when the host writes to the interrupted stack.
 *
 * A breakpoint that is not the host's continues at gp_foreign_bp, with the
 * same frame: the guest's own handler, which here counts it.
 */
FUNC gp_breakpoint
	TRAP_FRAME 0
	outb %al, $PORT_BREAKPOINT
	iretq
ENDFUNC gp_breakpoint

FUNC gp_foreign_bp
	TRAP_FRAME 0
	lock incq foreign_bp_count(%rip)
	iretq
ENDFUNC gp_foreign_bp

/* #DB, in the same way. */
FUNC gp_debug
	TRAP_FRAME 0
	outb %al, $PORT_DEBUG
	iretq
ENDFUNC gp_debug

FUNC gp_foreign_db
	TRAP_FRAME 0
	lock incq foreign_db_count(%rip)
	iretq
ENDFUNC gp_foreign_db

FUNC nmi_entry
	TRAP_FRAME 0
	lock incq nmi_count(%rip)
	iretq
ENDFUNC nmi_entry

/*
 * One stub per vector, 16 bytes each, so that cpu.c computes their addresses.
 * All of them leave {vector, error code} under the hardware frame; the CPU
 * itself pushes an error code for 8, 10-14, 17, 21, 29 and 30 (SDM Vol. 3,
 * 6.13; APM Vol. 2, 8.2).
 */
	.balign 4096
	.globl exc_stubs
	.type exc_stubs, @function
exc_stubs:
	.set vec, 0
	.rept 256
	.balign 16, 0xcc
	.if (vec == 8) || ((vec >= 10) && (vec <= 14)) || (vec == 17) || (vec == 21) || (vec == 29) || (vec == 30)
	.else
	pushq $0
	.endif
	pushq $vec
	.if vec == VECTOR_TIMER
	jmp timer_entry
	.elseif vec == VECTOR_SYSCALL
	jmp syscall_entry
	.elseif vec < 32
	jmp exc_common
	.else
	jmp spurious_entry
	.endif
	.set vec, vec + 1
	.endr
	.balign 16, 0xcc
	.size exc_stubs, . - exc_stubs

/*
 * Exceptions. One whose interrupted RIP is in an executable area of the engine
 * happened in a copy of a probed instruction: the host is asked first. It puts
 * the original address into the frame, and either says with vector ~0 that the
 * fault is dealt with, or leaves it to the handler below.
 */
FUNC exc_common
	TRAP_FRAME 16
	SAVE rax
	movq 24(%rsp), %rax
	subq exec_lo(%rip), %rax
	cmpq exec_size(%rip), %rax
	jb 1f
	movq 24(%rsp), %rax
	subq exec_lo+8(%rip), %rax
	cmpq exec_size+8(%rip), %rax
	jb 1f
	.cfi_remember_state
	RESTORE rax
	jmp exc_handle
	.cfi_restore_state
1:	RESTORE rax
	outb %al, $PORT_FAULT
	cmpq $-1, (%rsp)
	jne exc_handle
	addq $16, %rsp
	.cfi_adjust_cfa_offset -16
	iretq
ENDFUNC exc_common

FUNC exc_handle
	TRAP_FRAME 16
	SAVE_REGS
	call exc_dispatch
	jmp trap_return
ENDFUNC exc_handle

FUNC timer_entry
	TRAP_FRAME 16
	SAVE_REGS
	call timer_interrupt
	jmp trap_return
ENDFUNC timer_entry

FUNC syscall_entry
	TRAP_FRAME 16
	SAVE_REGS
	call do_syscall
	jmp trap_return
ENDFUNC syscall_entry

FUNC spurious_entry
	TRAP_FRAME 16
	lock incq spurious_irqs(%rip)
	addq $16, %rsp
	.cfi_adjust_cfa_offset -16
	iretq
ENDFUNC spurious_entry

FUNC trap_return
	TRAP_FRAME 136
	.set slot, -40 - 16 - 15 * 8
	.irp r, r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi
	.cfi_offset \r, slot
	.set slot, slot + 8
	.endr
	.irp r, r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi
	RESTORE \r
	.endr
	addq $16, %rsp
	.cfi_adjust_cfa_offset -16
	iretq
ENDFUNC trap_return

