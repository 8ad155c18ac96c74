/* Tables of texts have addresses in them, which no loader fills in. */
#include "../../../../docs/examples/guestprobe.h"

static const char *const names[] = { "alpha", "beta", "gamma" };
u64 letters;

SEC("kprobe/vfs_read")
int prog(struct pt_regs *ctx)
{
	letters += names[ctx->si % 3][0];
	return 0;
}

SEC("kprobe/vfs_write")
int other(struct pt_regs *ctx)
{
	letters++;
	return 0;
}
