/* Values of tasks: of the current one, and of one that is an argument. */
#include "../../../../docs/examples/guestprobe.h"

struct task_struct;

static void *(*bpf_task_storage_get)(void *map, struct task_struct *task, void *value, u64 flags) = (void *)156;
static long (*bpf_task_storage_delete)(void *map, struct task_struct *task) = (void *)157;
static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *)158;

struct counts {
	u64 calls;
	s32 last;
};

struct {
	__uint(type, 29); /* task storage */
	__uint(map_flags, 1); /* BPF_F_NO_PREALLOC */
	__type(key, int);
	__type(value, struct counts);
} of_task SEC(".maps");

u64 found;
s64 answer;

SEC("kprobe/count")
int count(struct pt_regs *ctx)
{
	struct counts *c = bpf_task_storage_get(&of_task, bpf_get_current_task_btf(), 0, 1);

	if (!c)
		return 1;
	c->calls++;
	c->last = PT_REGS_PARM1(ctx);
	return 0;
}

SEC("fentry/vfs_read")
int typed(u64 *ctx)
{
	struct counts first = { .calls = 100 };
	struct counts *c = bpf_task_storage_get(&of_task, (void *)ctx[0], &first, ctx[1]);

	found = c ? c->calls++ : 0;
	return 0;
}

SEC("kprobe/delete")
int delete(struct pt_regs *ctx)
{
	answer = bpf_task_storage_delete(&of_task, (void *)PT_REGS_PARM1(ctx));
	return 0;
}
