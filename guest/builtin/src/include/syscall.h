/*
 * System calls: int 0x80 with the number in RAX and arguments in RDI, RSI, RDX,
 * RCX, R8, R9; the result in RAX, every other register kept. Where CPL0 is
 * emulated neither way in works as the manual says: `syscall` at CPL3 jumps to
 * LSTAR without leaving CPL3, and `int 0x80` raises #UD. The latter leaves
 * everything intact, so exc_dispatch (trap.c) takes it for what it is.
 */
#ifndef GP_SYSCALL_H
#define GP_SYSCALL_H

#define SYS_READ 0   /* fd, buf, count, pos */
#define SYS_WRITE 1  /* fd, buf, count */
#define SYS_OPEN 2   /* path, flags, mode */
#define SYS_YIELD 3  /* */
#define SYS_SLEEP 4  /* ticks */
#define SYS_FORK 5   /* seed: exit code of a child that had it */
#define SYS_GETPID 6 /* */
#define SYS_REPORT 7 /* code, got, want: a user self-check failed */
#define SYS_ROUND 8  /* sum: a user round is done; 1 when it was the last */
#define SYS_EXIT 9   /* code */
#define NR_SYSCALLS 10

#endif
