/* Programs that never end by themselves, each in another way of taking long. */
#include "../../../../docs/examples/guestprobe.h"

struct key {
	u64 word[48];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct key);
	__type(value, u64);
} seen SEC(".maps");

SEC("kprobe/user_hot")
int loop(struct pt_regs *ctx)
{
	volatile u64 n = 0;

	while (n + 1)
		n += 1;
	return 0;
}

SEC("kprobe/user_hot+0x0")
int reads(struct pt_regs *ctx)
{
	u64 got, sum = 0;

	for (u64 at = 0x10000000; sum != 1; at += 4096)
		sum += bpf_probe_read_user(&got, sizeof got, (void *)at);
	return 0;
}

SEC("kprobe/user_red_zone")
int search(struct pt_regs *ctx)
{
	struct key k = {};

	while (k.word[47] + 1) {
		k.word[47] += 1;
		bpf_map_update_elem(&seen, &k, &k.word[47], BPF_ANY);
	}
	return 0;
}

SEC("kprobe/user_red_zone+0x0")
int walk(struct pt_regs *ctx)
{
	u64 stack[32];

	while (bpf_get_stack(ctx, stack, sizeof stack, 256) != 1)
		;
	return 0;
}
