/* Functions that helpers call, programs that go on as others, maps in maps. */
#include "../../../../docs/examples/guestprobe.h"

static long (*bpf_tail_call)(void *ctx, void *programs, u32 n) = (void *)12;
static long (*bpf_for_each_map_elem)(void *map, void *fn, void *ctx, u64 flags) = (void *)164;
static long (*bpf_loop)(u32 n, void *fn, void *ctx, u64 flags) = (void *)181;

enum { BPF_MAP_TYPE_PROG_ARRAY = 3, BPF_MAP_TYPE_ARRAY_OF_MAPS = 12, BPF_MAP_TYPE_HASH_OF_MAPS = 13 };

struct inner {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__type(key, u32);
	__type(value, u64);
} first SEC(".maps"), second SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 3);
	__type(key, u32);
	struct inner *values[];
} outer SEC(".maps") = { .values = { &first, &second } };

int next(struct pt_regs *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, 4);
	int (*values[])(struct pt_regs *);
} programs SEC(".maps") = { .values = { [1] = (void *)&next } };

u64 looped, visited, sum, tails;

struct loop {
	u64 total, stop;
};

static long add(u32 i, struct loop *l)
{
	l->total += i;
	return i == l->stop;
}

static long visit(void *map, const u32 *key, const u64 *value, u64 *total)
{
	*total += *key * *value;
	return 0;
}

SEC("kprobe/vfs_read")
int run(struct pt_regs *ctx)
{
	struct loop l = { .stop = ctx->si };
	u32 which = ctx->dx, key = ctx->dx + 10;
	u64 value = 3, total = 0;
	void *m;

	looped = bpf_loop(ctx->di, add, &l, 0);
	sum = l.total;
	m = bpf_map_lookup_elem(&outer, &which);
	if (!m)
		return 1;
	bpf_map_update_elem(m, &key, &value, BPF_ANY);
	key++;
	bpf_map_update_elem(m, &key, &value, BPF_ANY);
	visited = bpf_for_each_map_elem(&second, visit, &total, 0);
	sum += total << 32;
	bpf_tail_call(ctx, &programs, 0);
	bpf_tail_call(ctx, &programs, 1);
	return 2;
}

SEC("kprobe")
int next(struct pt_regs *ctx)
{
	tails++;
	if (tails < 100)
		bpf_tail_call(ctx, &programs, 1);
	return 5;
}
