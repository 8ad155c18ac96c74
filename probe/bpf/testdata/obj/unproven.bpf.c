// Accesses that the verifier cannot prove: they are checked when they are made.
#include "../../../../docs/examples/guestprobe.h"

int table[16];

SEC("kprobe/vfs_read")
int unproven(unsigned long *regs)
{
	unsigned long at = regs[13] & 31;

	table[at & 15] = 1;
	bpf_probe_read_kernel((char *)table + at * 4, 4, (void *)regs[14]);
	table[(regs[12] & 63) - 1] = 2;
	return 0;
}
