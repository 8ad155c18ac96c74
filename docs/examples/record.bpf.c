/* A record of every call with a large count: time, vCPU, arguments, name. */
#include "guestprobe.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} records SEC(".maps");

const volatile u64 smallest = 100; /* may be set before loading */
u64 seen, kept;

struct record {
	u64 time;
	u64 args[6];
	u32 cpu;
	u32 name_len;
	char name[32];
};

SEC("kprobe/vfs_read")
int record(struct pt_regs *ctx)
{
	struct record *r;
	s64 n;

	__sync_fetch_and_add(&seen, 1);
	if (PT_REGS_PARM3(ctx) < smallest)
		return 0;
	r = bpf_ringbuf_reserve(&records, sizeof(*r), 0);
	if (!r)
		return 0; /* counted as lost */
	r->time = bpf_ktime_get_ns();
	r->args[0] = PT_REGS_PARM1(ctx);
	r->args[1] = PT_REGS_PARM2(ctx);
	r->args[2] = PT_REGS_PARM3(ctx);
	r->args[3] = PT_REGS_PARM4(ctx);
	r->args[4] = PT_REGS_PARM5(ctx);
	r->args[5] = PT_REGS_PARM6(ctx);
	r->cpu = bpf_get_smp_processor_id();
	n = bpf_probe_read_kernel_str(r->name, sizeof(r->name), (void *)PT_REGS_PARM2(ctx));
	r->name_len = n > 0 ? n - 1 : 0;
	bpf_ringbuf_submit(r, 0);
	__sync_fetch_and_add(&kept, 1);
	return 1;
}
