/* A program for a probe among others that are for what there is not. */
#include "../../../../docs/examples/guestprobe.h"

extern unsigned CONFIG_HZ __attribute__((section(".kconfig")));
static long (*bpf_send_signal)(u32 sig) = (void *)109;

struct event {
	s64 got;
	u32 pid;
	char comm[12];
	struct {
		short low;
		unsigned char flags : 3;
		unsigned char more : 5;
	} bits;
	enum { RED, GREEN, BLUE } color;
	u8 raw[4];
	_Bool yes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, struct { u32 a; s32 b; });
	__type(value, struct event);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

const volatile int threshold = 5;
const volatile char name[8] = "abc";
int seen = -3;

/* Clang keeps the type of what goes into a ring for who refers to it. */
struct event *unused_event __attribute__((unused));

SEC("kprobe/vfs_read")
int good(struct pt_regs *ctx)
{
	struct { u32 a; s32 b; } key = { 1, -2 };
	struct event e = { .got = -(s64)threshold, .pid = 7, .comm = "hello", .bits = { -1, 5, 17 }, .color = BLUE, .raw = { 1, 2, 3, 4 }, .yes = 1 };
	struct event *r;

	e.comm[5] = name[0];
	seen--;
	bpf_map_update_elem(&events, &key, &e, BPF_ANY);
	r = bpf_ringbuf_reserve(&ring, sizeof *r, 0);
	if (r) {
		*r = e;
		bpf_ringbuf_submit(r, 0);
	}
	return 0;
}

SEC("kretprobe/vfs_read")
int config(struct pt_regs *ctx)
{
	return CONFIG_HZ;
}

SEC("kprobe/do_fork")
int helper(struct pt_regs *ctx)
{
	return bpf_send_signal(9);
}

SEC("tracepoint/sched/sched_switch")
int other(void *ctx)
{
	return 0;
}

SEC("xdp")
int drop(void *ctx)
{
	return 2;
}
