/* A program that does nothing but what takes long: reads of what is not there. */
#include "../../../../docs/examples/guestprobe.h"

SEC("kprobe/user_red_zone")
int slow(struct pt_regs *ctx)
{
	u64 got, sum = 0;

	for (u64 at = 0x10000000; at < 0x90000000; at += 4096)
		sum += bpf_probe_read_user(&got, sizeof got, (void *)at);
	return sum != 0;
}
