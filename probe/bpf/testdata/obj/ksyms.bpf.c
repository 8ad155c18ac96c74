/* Symbols of a kernel, with a type and without one. */
#include "../../../../docs/examples/guestprobe.h"

extern const int bpf_prog_active __attribute__((section(".ksyms")));
extern const void jiffies __attribute__((section(".ksyms"), weak));

SEC("kprobe/vfs_read")
int typed(struct pt_regs *ctx)
{
	return *(const int *)&bpf_prog_active;
}

SEC("kprobe/do_fork")
int weak(struct pt_regs *ctx)
{
	return &jiffies != 0;
}
