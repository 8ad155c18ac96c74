/* Local calls, a loop, constants, text for trace_printk, all kinds of global. */
#include "../../../../docs/examples/guestprobe.h"

struct point {
	u64 x, y;
};

const volatile u32 limit = 10;
struct point start = { .x = 3, .y = 4 };
u64 total;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 16);
	__type(key, struct point);
	__type(value, u64);
} by_point SEC(".maps");

static __attribute__((noinline)) u64 sum(u64 n, u64 *out)
{
	u64 s = 0;

	for (u64 i = 0; i < n; i++)
		s += i * i + limit;
	*out = s;
	return s & 1;
}

SEC("kprobe/some_function")
int walk(struct pt_regs *ctx)
{
	static const char fmt[] = "n=%d sum=%llu\n";
	struct point p = start;
	u64 s = 0, *v;

	if (PT_REGS_PARM1(ctx) > limit)
		return -1;
	sum(PT_REGS_PARM1(ctx), &s);
	total += s;
	p.x += PT_REGS_PARM1(ctx);
	bpf_map_update_elem(&by_point, &p, &s, BPF_ANY);
	v = bpf_map_lookup_elem(&by_point, &p);
	bpf_trace_printk(fmt, sizeof(fmt), PT_REGS_PARM1(ctx), s);
	return v ? *v == s : -2;
}
