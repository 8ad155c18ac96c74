/* Mistakes that can be told without running a program. */
#include "../../../../docs/examples/guestprobe.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, u64);
	__type(value, u64);
} seen SEC(".maps");

SEC("kprobe/vfs_read")
int unchecked(struct pt_regs *ctx)
{
	u64 key = PT_REGS_PARM1(ctx);
	u64 *n = bpf_map_lookup_elem(&seen, &key);

	*n += 1;
	return 0;
}

SEC("kprobe/do_fork")
int unwritten(struct pt_regs *ctx)
{
	u64 key;

	asm volatile("%0 = *(u64 *)(r10 - 64)" : "=r"(key));
	return key != 0;
}

SEC("kprobe/vfs_write")
int fine(struct pt_regs *ctx)
{
	u64 key = PT_REGS_PARM1(ctx);
	u64 *n = bpf_map_lookup_elem(&seen, &key);

	if (n)
		*n += 1;
	return 0;
}
