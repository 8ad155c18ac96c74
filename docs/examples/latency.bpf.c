/* How long does a function take? A log2 histogram of nanoseconds. */
#include "guestprobe.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u64);
} started SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u64);
} nanoseconds SEC(".maps");

SEC("kprobe/vfs_read")
int enter(struct pt_regs *ctx)
{
	u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();

	bpf_map_update_elem(&started, &id, &now, BPF_ANY);
	return 0;
}

SEC("kretprobe/vfs_read")
int leave(struct pt_regs *ctx)
{
	u64 id = bpf_get_current_pid_tgid(), *then, *n;
	u32 bucket;

	then = bpf_map_lookup_elem(&started, &id);
	if (!then)
		return 0;
	bucket = log2_bucket(bpf_ktime_get_ns() - *then);
	bpf_map_delete_elem(&started, &id);
	n = bpf_map_lookup_elem(&nanoseconds, &bucket);
	if (n)
		*n += 1;
	return 0;
}
