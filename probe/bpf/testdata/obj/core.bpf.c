/*
 * What vmlinux.h does: types with relocations. The layout here is not that of
 * the context, so only relocated accesses read the right registers.
 */
#define SEC(name) __attribute__((section(name), used))

struct pt_regs {
	unsigned long di, ax, si;
} __attribute__((preserve_access_index));

SEC("kprobe/f")
int registers(struct pt_regs *ctx)
{
	return ctx->di * 10000 + ctx->si * 100 + ctx->ax;
}
