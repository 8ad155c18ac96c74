/*
 * The programs that the benchmark compares with detours written by hand
 * (guest/builtin/src/user/floor.S). Built by the Makefile of docs/examples.
 */
#include "../../../docs/examples/guestprobe.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} hits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} records SEC(".maps");

struct record {
	u64 time, arg[6];
};

SEC("kprobe/count")
int count(struct pt_regs *ctx)
{
	u32 zero = 0;
	u64 *n = bpf_map_lookup_elem(&hits, &zero);

	if (n)
		*n += 1;
	return 0;
}

SEC("kprobe/record")
int record(struct pt_regs *ctx)
{
	struct record *r = bpf_ringbuf_reserve(&records, sizeof(*r), 0);

	if (!r)
		return 0;
	r->time = bpf_ktime_get_ns();
	r->arg[0] = PT_REGS_PARM1(ctx);
	r->arg[1] = PT_REGS_PARM2(ctx);
	r->arg[2] = PT_REGS_PARM3(ctx);
	r->arg[3] = PT_REGS_PARM4(ctx);
	r->arg[4] = PT_REGS_PARM5(ctx);
	r->arg[5] = PT_REGS_PARM6(ctx);
	bpf_ringbuf_submit(r, 0);
	return 0;
}

SEC("kprobe/reject")
int reject(struct pt_regs *ctx)
{
	u32 zero = 0;
	u64 *n;

	if (PT_REGS_PARM1(ctx) != 0x1234567)
		return 0;
	n = bpf_map_lookup_elem(&hits, &zero);
	if (n)
		*n += 1;
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u64);
} nanoseconds SEC(".maps");

SEC("kretprobe/duration")
int duration(struct guestprobe_return *ctx)
{
	u32 bucket = log2_bucket(bpf_ktime_get_ns() - ctx->entry_time);
	u64 *n = bpf_map_lookup_elem(&nanoseconds, &bucket);

	if (n)
		*n += 1;
	return 0;
}

SEC("kretprobe/returns")
int returns(struct pt_regs *ctx)
{
	u32 zero = 0;
	u64 *n = bpf_map_lookup_elem(&hits, &zero);

	if (n)
		*n += 1;
	return 0;
}
