/* A variable of an arena, in the section that newer clangs put it in. */
#include "../../../../docs/examples/guestprobe.h"

int counter __attribute__((section(".addr_space.1")));

SEC("kprobe/vfs_read")
int prog(struct pt_regs *ctx)
{
	counter++;
	return 0;
}
