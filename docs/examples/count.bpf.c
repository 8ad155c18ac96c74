/* How often is a function called, in all and with each first argument? */
#include "guestprobe.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} hits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u64);
} by_arg SEC(".maps");

SEC("kprobe/vfs_read")
int count(struct pt_regs *ctx)
{
	u64 arg = PT_REGS_PARM1(ctx), one = 1, *n;
	u32 zero = 0;

	n = bpf_map_lookup_elem(&hits, &zero);
	if (n)
		*n += 1; /* ours alone: the map is per CPU */
	n = bpf_map_lookup_elem(&by_arg, &arg);
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		bpf_map_update_elem(&by_arg, &arg, &one, BPF_NOEXIST);
	return 0;
}
