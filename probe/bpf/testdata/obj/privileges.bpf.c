/* Programs for code of both privileges, with a map of each and one of both. */
#include "../../../../docs/examples/guestprobe.h"

#define COUNTER(name)                            \
	struct {                                 \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(max_entries, 1);          \
		__type(key, u32);                \
		__type(value, u64);              \
	} name SEC(".maps")

COUNTER(in_kernel);
COUNTER(in_user);
COUNTER(in_both);

static __attribute__((always_inline)) void bump(void *map)
{
	u32 key = 0;
	u64 *v = bpf_map_lookup_elem(map, &key);

	if (v)
		__sync_fetch_and_add(v, 1);
}

SEC("kprobe/vfs_read")
int kernel(struct pt_regs *ctx)
{
	bump(&in_kernel);
	bump(&in_both);
	return 0;
}

SEC("kprobe/user_hot")
int user_own(struct pt_regs *ctx)
{
	bump(&in_user);
	return 0;
}

SEC("kprobe/user_hot+0x0")
int user_shared(struct pt_regs *ctx)
{
	bump(&in_user);
	bump(&in_both);
	return 0;
}
