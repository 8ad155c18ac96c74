/* A type of the object's own, marked for relocation as some tools do for their loader. */
#include "../../../../docs/examples/guestprobe.h"

#define exists(x) __builtin_preserve_field_info(x, 2)

struct inner {
	u32 list[3];
} __attribute__((preserve_access_index));

struct own_value {
	u64 first;
	union {
		u32 second;
		struct inner in;
	};
} __attribute__((preserve_access_index));

struct elsewhere {
	u64 a;
	struct inner in[2];
} __attribute__((preserve_access_index));

enum state { RUNNING, STOPPED = 7, NEVER };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct own_value);
} values SEC(".maps");

SEC("kprobe/vfs_read")
int own(struct pt_regs *ctx)
{
	u32 zero = 0;
	struct own_value *v = bpf_map_lookup_elem(&values, &zero);

	if (!v)
		return 1;
	v->first = 5;
	v->in.list[2] = exists(v->second) ? 6 : 0;
	return 0;
}

SEC("kprobe/vfs_write")
int other(struct pt_regs *ctx)
{
	return ((struct elsewhere *)ctx->di)->in[1].list[2];
}

SEC("kprobe/vfs_open")
int value(struct pt_regs *ctx)
{
	return __builtin_preserve_enum_value(*(typeof(enum state) *)NEVER, 1);
}
