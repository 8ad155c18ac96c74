/* Programs that have a function's arguments by its type, and follow its pointers. */
#include "../../../../docs/examples/guestprobe.h"

static long (*bpf_get_func_arg)(void *ctx, u32 n, u64 *value) = (void *)183;
static long (*bpf_get_func_ret)(void *ctx, u64 *value) = (void *)184;
static long (*bpf_get_func_arg_cnt)(void *ctx) = (void *)185;

struct inode {
	u64 i_ino;
	short i_opflags;
} __attribute__((preserve_access_index));

struct file {
	struct inode *f_inode;
} __attribute__((preserve_access_index));

u64 inode, count, args, ret, again, calls;
s64 opflags;

SEC("fentry/vfs_read")
int enter(u64 *ctx)
{
	struct file *f = (void *)ctx[0];

	inode = f->f_inode->i_ino;
	opflags = f->f_inode->i_opflags;
	count = ctx[2];
	args = bpf_get_func_arg_cnt(ctx);
	bpf_get_func_arg(ctx, 2, &again);
	return 0;
}

SEC("fexit.s/vfs_read")
int leave(u64 *ctx)
{
	struct file *f = (void *)ctx[0];
	u64 value;

	inode = f->f_inode->i_ino;
	ret = ctx[4];
	if (bpf_get_func_ret(ctx, &value) == 0)
		again = value;
	return 0;
}

SEC("ksyscall/openat")
int open(struct pt_regs *ctx)
{
	calls++;
	return 0;
}

SEC("kretsyscall/openat")
int opened(struct pt_regs *ctx)
{
	calls += 100;
	return 0;
}
