/* Programs at all functions that match a pattern. */
#include "../../../../docs/examples/guestprobe.h"

#define MAPS __attribute__((section(".maps"), used))

static u64 (*bpf_get_attach_cookie)(void *ctx) = (void *)174;

struct {
	int (*type)[1]; /* hash */
	u64 *key;
	u64 *value;
	int (*max_entries)[64];
} calls MAPS;

INLINE int count(void *ctx, u64 more)
{
	u64 at = bpf_get_func_ip(ctx) + more, one = 1, *n;

	n = bpf_map_lookup_elem(&calls, &at);
	if (n)
		*n += 1;
	else
		bpf_map_update_elem(&calls, &at, &one, 0);
	return bpf_get_attach_cookie(ctx);
}

SEC("kprobe.multi/vfs_*")
int entries(struct pt_regs *ctx)
{
	return count(ctx, 0);
}

SEC("kretprobe.multi/*_fork")
int returns(struct pt_regs *ctx)
{
	return count(ctx, 1);
}

char LICENSE[] SEC("license") = "GPL";
