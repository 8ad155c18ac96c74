/*
 * Codes that a failed self-check reports on PORT_REPORT. Bit 31 is set when
 * the check ran at CPL3; bits 0..15 say which it was.
 */
#ifndef GP_SELFCHECK_H
#define GP_SELFCHECK_H

#define CHECK_USER 0x80000000u

#define CHECK_SHAPES 0x100 /* + index in the table of shapes/checks.c */
#define CHECK_TCP 0x201
#define CHECK_OPEN 0x202
#define CHECK_READ 0x203
#define CHECK_FORK 0x204
#define CHECK_FAULT 0x205
#define CHECK_REGS 0x206
#define CHECK_LOCK 0x207
#define CHECK_INT3 0x208
#define CHECK_FLAGS 0x209
#define CHECK_SSE 0x20a
#define CHECK_HOT 0x20b
#define CHECK_CHECKSUM 0x20c
#define CHECK_STACK 0x20d
#define CHECK_SYSCALL 0x20e
#define CHECK_SECTIONS 0x20f
#define CHECK_KILL 0x210
#define CHECK_KWORKER 0x211
#define CHECK_VARIABLES 0x212
#define CHECK_ON_PURPOSE 0x2ff /* crash=selfcheck */

#endif
