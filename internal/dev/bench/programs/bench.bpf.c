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

/* What scripts of one line do, as one writes it in C. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u64);
} arguments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u64);
} start SEC(".maps");

SEC("kprobe/by_arg")
int by_arg(struct pt_regs *ctx)
{
	u64 key = PT_REGS_PARM1(ctx), one = 1;
	u64 *n = bpf_map_lookup_elem(&arguments, &key);

	if (n)
		*n += 1;
	else
		bpf_map_update_elem(&arguments, &key, &one, 0);
	return 0;
}

INLINE void add(u64 value)
{
	u32 bucket = log2_bucket(value);
	u64 *n = bpf_map_lookup_elem(&nanoseconds, &bucket);

	if (n)
		*n += 1;
}

SEC("kprobe/histogram")
int histogram(struct pt_regs *ctx)
{
	add(PT_REGS_PARM2(ctx));
	return 0;
}

SEC("kprobe/begin")
int begin(struct pt_regs *ctx)
{
	u64 tid = (u32)bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();

	bpf_map_update_elem(&start, &tid, &now, 0);
	return 0;
}

SEC("kretprobe/latency")
int latency(struct pt_regs *ctx)
{
	u64 tid = (u32)bpf_get_current_pid_tgid();
	u64 *t = bpf_map_lookup_elem(&start, &tid);

	if (!t)
		return 0;
	add(bpf_ktime_get_ns() - *t);
	bpf_map_delete_elem(&start, &tid);
	return 0;
}
