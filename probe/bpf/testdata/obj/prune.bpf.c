/* Code that constants of the object, or options of the kernel, make unreachable. */
#include "../../../../docs/examples/guestprobe.h"

static long (*bpf_send_signal)(u32 sig) = (void *)109;

#define OPTION __attribute__((section(".kconfig")))
#define SYMBOL __attribute__((section(".ksyms")))

extern unsigned LINUX_KERNEL_VERSION OPTION;
extern unsigned CONFIG_NOT_THERE OPTION;
extern void kernel_function(void *) SYMBOL;
extern const void nothing SYMBOL;

struct task_struct {
	int pid;
	long never;
} __attribute__((preserve_access_index));

struct {
	__uint(type, 9); /* lru_hash */
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u32);
} recent SEC(".maps");

const volatile _Bool enabled;
const volatile u64 wide = 1ULL << 40 | 3;
const volatile short low = -5;
const volatile unsigned level = 2;
const volatile char names[3][4] = { "a", "bc", "d" };
int given = 3;
u64 runs;

static __attribute__((noinline)) int lacking(struct pt_regs *ctx)
{
	u32 key = 0;

	bpf_map_update_elem(&recent, &key, &key, 0);
	kernel_function(ctx);
	bpf_trace_printk("x", 2);
	*(volatile int *)0 = CONFIG_NOT_THERE + (u64)&nothing;
	return bpf_send_signal(9) + ((struct task_struct *)ctx->di)->never;
}

SEC("kprobe/vfs_read")
int constants(struct pt_regs *ctx)
{
	if (enabled)
		return lacking(ctx);
	if (level * 4 + 1 > 9 || low >= 0 || (level << 3 & 15) || names[1][1] == 'x')
		return lacking(ctx);
	if (LINUX_KERNEL_VERSION < 0x50000)
		bpf_send_signal(9);
	runs++;
	return (wide >> 40) + low + level;
}

SEC("kprobe/vfs_write")
int variable(struct pt_regs *ctx)
{
	if (given != 3)
		bpf_send_signal(9);
	return 0;
}

SEC("kprobe/vfs_open")
int whole(struct pt_regs *ctx)
{
	if (wide == 3)
		bpf_send_signal(9);
	return wide == (1ULL << 40 | 3);
}
