/* A program that changes what the guest does. */
#include "../../../../docs/examples/guestprobe.h"

SEC("kprobe/bench_target")
int fail(struct pt_regs *ctx)
{
	bpf_override_return(ctx, 7);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
