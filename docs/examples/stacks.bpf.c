/* Who calls a function? Counts for each stack of the kernel's. */
#include "guestprobe.h"

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 1024);
	__uint(key_size, sizeof(u32));
	__uint(value_size, 16 * sizeof(u64)); /* so many return addresses of each */
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32); /* a key of stacks */
	__type(value, u64);
} calls SEC(".maps");

SEC("kprobe/vfs_read")
int who(struct pt_regs *ctx)
{
	long id = bpf_get_stackid(ctx, &stacks, 0);
	u64 one = 1, *n;
	u32 key = id;

	if (id < 0)
		return 0;
	n = bpf_map_lookup_elem(&calls, &key);
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&calls, &key, &one, BPF_NOEXIST);
	return 0;
}
