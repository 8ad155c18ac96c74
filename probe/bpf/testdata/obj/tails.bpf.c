/* A tail call to a program at a function that not every kernel has. */
#include "../../../../docs/examples/guestprobe.h"

enum { BPF_MAP_TYPE_PROG_ARRAY = 3 };
static long (*bpf_tail_call)(void *ctx, void *map, u32 index) = (void *)12;

u64 first, next_runs;

SEC("kprobe/not_in_this_kernel")
int next(struct pt_regs *ctx)
{
	next_runs++;
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, 4);
	int (*values[])(struct pt_regs *);
} programs SEC(".maps") = { .values = { [1] = (void *)&next } };

SEC("kprobe/vfs_read")
int prog(struct pt_regs *ctx)
{
	first++;
	bpf_tail_call(ctx, &programs, 1);
	first += 100;
	return 0;
}
