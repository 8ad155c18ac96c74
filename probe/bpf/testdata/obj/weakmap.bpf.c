/* Weak maps and variables are what libbpf's USDT header defines. */
#include "../../../../docs/examples/guestprobe.h"

#define __weak __attribute__((weak))

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, u32);
	__type(value, u64);
} counts SEC(".maps") __weak;

u64 total __weak = 7;

SEC("kprobe/vfs_read")
int prog(struct pt_regs *ctx)
{
	u32 k = 1;
	u64 *v = bpf_map_lookup_elem(&counts, &k);

	if (v)
		*v = total;
	total++;
	return 0;
}
