/*
 * The user program: one task per vCPU, which computes at native speed and asks
 * the kernel for something now and then. Every result is checked.
 */
#include "user.h"
#include "selfcheck.h"
#include "syscall.h"

#define HOT_CALLS 2000
#define BUFFER 64

void user_selfcheck_fail(u32 code, u64 got, u64 want)
{
	user_syscall(SYS_REPORT, code, got, want, 0);
}

static void expect(u32 code, u64 got, u64 want)
{
	if (got != want)
		user_selfcheck_fail(code | CHECK_USER, got, want);
}

/* What user_hot computes, without a call. */
static inline __attribute__((always_inline)) u64 hot_inlined(u64 a, u64 b)
{
	u64 v = (a << 5) - a + b;

	return v ^ v >> 7;
}

PROBED u64 user_hot_loop(u64 cpu, u64 seed)
{
	u64 i, got = seed, want = seed;

	for (i = 0; i < HOT_CALLS; i++) {
		got = user_hot(got, i);
		want = hot_inlined(want, i);
	}
	user_hot_calls[cpu] += HOT_CALLS;
	expect(CHECK_HOT, got, want);
	return got;
}

PROBED u64 user_memory(u64 seed)
{
	u8 data[BUFFER];
	u64 i, s = 1, t = 0, sum;

	for (i = 0; i < BUFFER; i++)
		data[i] = (u8)(seed >> (i & 31)) ^ (u8)i;
	/* Byte i is in s once and in t as often as sums follow it. */
	for (i = 0; i < BUFFER; i++) {
		s += data[i];
		t += (BUFFER - i) * data[i];
	}
	t += BUFFER;
	sum = user_checksum(data, BUFFER);
	expect(CHECK_CHECKSUM, sum, t << 32 | s);
	expect(CHECK_STACK, user_red_zone(seed, 3), 12 * seed + 66 * 3);
	return sum;
}

PROBED u64 user_files(u64 seed)
{
	static const char motd[] = "/etc/motd";
	char buf[16];
	s64 fd, n;

	fd = user_syscall(SYS_OPEN, (u64)motd, 0, 0, 0);
	expect(CHECK_OPEN, (u64)fd, 4);
	n = user_syscall(SYS_READ, (u64)fd, (u64)buf, 8 + (seed & 7), seed & 3);
	expect(CHECK_READ, (u64)n, 8 + (seed & 7));
	expect(CHECK_READ, (u64)buf[0], (u64) "int3"[seed & 3]);
	switch (seed & 3) {
	case 0:
		n = user_syscall(SYS_OPEN, (u64) "/etc/shadow", 0, 0, 0);
		expect(CHECK_OPEN, (u64)n, (u64)-2);
		break;
	case 1:
		n = user_syscall(SYS_OPEN, 0xffff8000, 0, 0, 0);
		expect(CHECK_OPEN, (u64)n, (u64)-14);
		break;
	case 2:
		n = user_syscall(SYS_READ, (u64)fd, 0xffff8000, 8, 0);
		expect(CHECK_READ, (u64)n, (u64)-14);
		break;
	default:
		n = user_syscall(SYS_WRITE, 3, (u64)buf, 9, 0);
		expect(CHECK_SYSCALL, (u64)n, 9);
	}
	return (u64)n;
}

PROBED u64 user_fork(u64 seed)
{
	s64 code = user_syscall(SYS_FORK, seed, 0, 0, 0);

	expect(CHECK_FORK, (u64)code, seed * 2654435761u >> 8 & 0xff);
	return (u64)code;
}

PROBED void user_faults(u64 seed)
{
	switch (seed & 3) {
	case 0:
		expect(CHECK_FAULT, (u64)user_fault_load((void *)0x7ffffff000),
		       (u64)-14);
		break;
	case 1:
		expect(CHECK_FAULT, (u64)user_fault_divide(seed, 0), (u64)-14);
		break;
	case 2:
		expect(CHECK_FAULT, (u64)user_fault_privileged(), (u64)-14);
		break;
	default:
		expect(CHECK_FAULT, (u64)user_fault_divide(seed, 7), seed / 7);
	}
}

/* One round: some 100,000 native instructions and half a dozen system calls. */
PROBED u64 user_round(u64 cpu, u64 seed, u64 sum)
{
	sum = (sum << 7 | sum >> 57) ^ user_hot_loop(cpu, seed);
	sum += user_memory(seed);
	user_run_shape_checks(seed, &sum);
	sum += user_files(seed);
	user_faults(seed);
	if ((seed & 3) == 0)
		sum += user_fork(seed);
	user_syscall(SYS_YIELD, 0, 0, 0, 0);
	return sum;
}

void user_main(u64 cpu, u64 flags)
{
	u64 round, sum = cpu;

	if (flags & USER_CRASH)
		*(volatile u64 *)0x7ffffff000 = 1;

	for (round = 1;; round++) {
		if (flags & USER_INT3)
			expect(CHECK_INT3, user_own_int3(round), round + 3);
		sum = user_round(cpu, cpu * 1000003 + round, sum);
		if (user_syscall(SYS_ROUND, sum, 0, 0, 0) == 1)
			break;
	}
	user_syscall(SYS_EXIT, 0, 0, 0, 0);
	for (;;)
		;
}
