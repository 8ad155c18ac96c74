/* Depends on a type that only a Linux kernel has. */
#define SEC(name) __attribute__((section(name), used))

struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

struct pt_regs {
	unsigned long di;
} __attribute__((preserve_access_index));

SEC("kprobe/f")
int task(struct pt_regs *ctx)
{
	return ((struct task_struct *)ctx->di)->pid;
}
