/* Dynptrs: in a value of a map, and as records of a ring. */
#include "../../../../docs/examples/guestprobe.h"

#define KSYM __attribute__((section(".ksyms")))
#define MAPS __attribute__((section(".maps"), used))

struct bpf_dynptr {
	u64 opaque[2];
} __attribute__((aligned(8)));

static long (*bpf_dynptr_from_mem)(void *data, u32 size, u64 flags, struct bpf_dynptr *p) = (void *)197;
static long (*bpf_ringbuf_reserve_dynptr)(void *ring, u32 size, u64 flags, struct bpf_dynptr *p) = (void *)198;
static void (*bpf_ringbuf_submit_dynptr)(struct bpf_dynptr *p, u64 flags) = (void *)199;
static void (*bpf_ringbuf_discard_dynptr)(struct bpf_dynptr *p, u64 flags) = (void *)200;
static long (*bpf_dynptr_read)(void *dst, u32 len, const struct bpf_dynptr *src, u32 offset, u64 flags) = (void *)201;
static long (*bpf_dynptr_write)(const struct bpf_dynptr *dst, u32 offset, void *src, u32 len, u64 flags) = (void *)202;
static void *(*bpf_dynptr_data)(const struct bpf_dynptr *ptr, u32 offset, u32 len) = (void *)203;

extern void *bpf_dynptr_slice(const struct bpf_dynptr *p, u32 offset, void *buffer, u32 size) KSYM;
extern void *bpf_dynptr_slice_rdwr(const struct bpf_dynptr *p, u32 offset, void *buffer, u32 size) KSYM;
extern int bpf_dynptr_adjust(const struct bpf_dynptr *p, u32 start, u32 end) KSYM;
extern _Bool bpf_dynptr_is_null(const struct bpf_dynptr *p) KSYM;
extern _Bool bpf_dynptr_is_rdonly(const struct bpf_dynptr *p) KSYM;
extern u32 bpf_dynptr_size(const struct bpf_dynptr *p) KSYM;
extern int bpf_dynptr_clone(const struct bpf_dynptr *p, struct bpf_dynptr *clone) KSYM;

struct {
	int (*type)[27]; /* ring */
	int (*max_entries)[4096];
} ring MAPS;

char memory[64] = "0123456789abcdef";
s64 answers[16];

SEC("kprobe/memory")
int in_memory(struct pt_regs *ctx)
{
	struct bpf_dynptr p, q;
	char part[4] = {}, *at;

	answers[0] = bpf_dynptr_from_mem(memory, 16, 0, &p);
	answers[1] = bpf_dynptr_size(&p);
	answers[2] = bpf_dynptr_read(part, 4, &p, 12, 0);
	answers[3] = *(u32 *)part == *(u32 *)"cdef";
	answers[4] = bpf_dynptr_read(part, 4, &p, 13, 0);
	answers[5] = bpf_dynptr_write(&p, 2, "XY", 2, 0);
	answers[6] = bpf_dynptr_clone(&p, &q);
	answers[7] = bpf_dynptr_adjust(&q, 4, 10);
	answers[8] = bpf_dynptr_size(&q);
	at = bpf_dynptr_slice(&q, 1, 0, 5);
	answers[9] = at ? *at : -1;
	at = bpf_dynptr_slice_rdwr(&q, 2, 0, 5);
	answers[10] = at ? *at : -1;
	at = bpf_dynptr_data(&q, 0, 6);
	if (at)
		*at = '!';
	answers[11] = bpf_dynptr_adjust(&q, 3, 7);
	answers[12] = bpf_dynptr_is_null(&q) << 1 | bpf_dynptr_is_rdonly(&q);
	answers[13] = bpf_dynptr_from_mem(memory, 16, 1, &q);
	answers[14] = bpf_dynptr_is_null(&q) | bpf_dynptr_size(&q) << 1;
	answers[15] = bpf_dynptr_clone(&q, &p);
	return 0;
}

SEC("kprobe/record")
int in_record(struct pt_regs *ctx)
{
	u64 value = PT_REGS_PARM1(ctx);
	struct bpf_dynptr p, lost;

	if (bpf_ringbuf_reserve_dynptr(&ring, 24, 0, &p)) {
		bpf_ringbuf_discard_dynptr(&p, 0);
		return 1;
	}
	bpf_dynptr_write(&p, 8, &value, 8, 0);
	if (value & 1)
		bpf_ringbuf_submit_dynptr(&p, 0);
	else if (value & 2)
		bpf_ringbuf_discard_dynptr(&p, 0);
	return bpf_ringbuf_reserve_dynptr(&ring, 8192, 0, &lost) != -22;
}

/* A dynptr that the program has made itself. */
SEC("kprobe/forged")
int forged(struct pt_regs *ctx)
{
	struct bpf_dynptr p;
	char part[8];

	p.opaque[0] = PT_REGS_PARM1(ctx);
	p.opaque[1] = PT_REGS_PARM2(ctx);
	if (PT_REGS_PARM3(ctx))
		bpf_ringbuf_submit_dynptr(&p, 0);
	return bpf_dynptr_read(part, 8, &p, 0, 0);
}

char LICENSE[] SEC("license") = "GPL";
