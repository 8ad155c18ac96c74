/* Statically defined probes by libbpf's own header, which libbpf-dev has. */
#include <stdbool.h>
#include <linux/types.h>
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/usdt.bpf.h>

char LICENSE[] SEC("license") = "GPL";

/* Sums of the arguments of app:tick, how many it has, and how often it was passed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, long);
} sums SEC(".maps");

static __always_inline void add(__u32 key, long n)
{
	long *v = bpf_map_lookup_elem(&sums, &key);

	if (v)
		__sync_fetch_and_add(v, n);
}

SEC("usdt//app:app:tick")
int BPF_USDT(tick, void *a, int b)
{
	long c = 0, none = 0;

	add(0, (long)a);
	add(1, b);
	if (bpf_usdt_arg(ctx, 2, &c) == 0)
		add(2, c);
	add(3, bpf_usdt_arg_cnt(ctx));
	add(4, 1);
	if (bpf_usdt_arg(ctx, 11, &none) == -ENOENT)
		add(5, 1);
	return 0;
}

SEC("?usdt")
int anywhere(struct pt_regs *ctx)
{
	long a = 0;

	if (bpf_usdt_arg(ctx, 0, &a) == 0)
		add(6, a);
	add(7, bpf_usdt_cookie(ctx) + 1);
	return 0;
}

/* The event is the tool's to choose. */
SEC("?perf_event")
int sample(void *ctx)
{
	add(7, 1);
	return 0;
}
