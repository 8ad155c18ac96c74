// A program with labels in inline assembly, which are symbols without a type.
#include "../../../../docs/examples/guestprobe.h"

SEC("kprobe/vfs_read")
int labels(unsigned long *regs)
{
	unsigned long n = regs[12];

	asm volatile("if %[n] > 7 goto l0_%=; %[n] = 7; l0_%=: %[n] += 1;" : [n] "+r"(n));
	return n;
}
