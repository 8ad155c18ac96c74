/* Maps whose size, place or file is up to the tool that loads them. */
#include "../../../../docs/examples/guestprobe.h"

#define MAPS __attribute__((section(".maps"), used))

struct {
	int (*type)[1]; /* hash */
	u32 *key;
	u64 *value;
	int (*numa_node)[1];
	int (*max_entries)[0];
} open_size MAPS;

struct {
	int (*type)[27]; /* ring */
} open_ring MAPS;

struct {
	int (*type)[2]; /* array */
	u32 *key;
	u64 *value;
	int (*max_entries)[4];
	int (*pinning)[1];
} pinned MAPS;

struct large {
	char bytes[4096];
};

struct {
	int (*type)[6]; /* array for each CPU */
	u32 *key;
	struct large *value;
} large MAPS;

typedef struct inner {
	int (*type)[1];
	u32 *key;
	u64 *value;
	int (*numa_node)[0];
	int (*max_entries)[8];
} inner_t;

inner_t one MAPS;

struct {
	int (*type)[13]; /* hash of maps */
	u32 *key;
	inner_t *values[];
} outer MAPS = { .values = { [2] = &one } };

SEC("kprobe/vfs_read")
int sized(struct pt_regs *ctx)
{
	u32 key = 2, last = 3;
	u64 one_more = 1, *n;
	void *in = bpf_map_lookup_elem(&outer, &key);

	if (!in)
		return 1;
	bpf_map_update_elem(in, &key, &one_more, 0);
	bpf_map_update_elem(&open_size, &key, &one_more, 0);
	n = bpf_map_lookup_elem(&pinned, &last);
	if (n)
		*n += 1;
	if (!bpf_map_lookup_elem(&large, &key))
		return 2;
	if (bpf_ringbuf_output(&open_ring, &one_more, sizeof(one_more), 0))
		return 3;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
