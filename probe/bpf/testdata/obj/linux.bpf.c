/* Counts what a Linux guest does with files whose names begin with gp, by all kinds of
   sections and with what only a kernel's types tell. */
#include "../../../../docs/examples/guestprobe.h"

static u64 (*bpf_get_current_uid_gid)(void) = (void *)15;
static void *(*bpf_get_current_task_btf)(void) = (void *)158;

#define RELOCATED __attribute__((preserve_access_index))

struct qstr {
	const unsigned char *name;
} RELOCATED;

struct dentry {
	struct qstr d_name;
} RELOCATED;

struct task_struct {
	int pid, tgid;
} RELOCATED;

struct trace_event_raw_sys_enter {
	unsigned long args[6];
} RELOCATED;

struct trace_event_raw_sys_exit {
	long ret;
} RELOCATED;

enum { UNLINKED, UNLINK_CALLS, UNLINK_DONE, NOT_THERE, ROOT, SAME_TASK, CALLS, LAST };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LAST);
	__type(key, u32);
	__type(value, u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u32);
} under_way SEC(".maps");

INLINE void count(u32 what)
{
	u64 *n = bpf_map_lookup_elem(&counts, &what);

	if (n)
		++*n;
}

INLINE int ours(const char *s)
{
	return s[0] == 'g' && s[1] == 'p';
}

SEC("fentry/vfs_unlink")
int unlinked(u64 *ctx)
{
	struct dentry *d = (void *)ctx[2];
	struct task_struct *t = bpf_get_current_task_btf();
	u64 id = bpf_get_current_pid_tgid();

	if (!ours((const char *)d->d_name.name))
		return 0;
	count(UNLINKED);
	if ((u32)bpf_get_current_uid_gid() == 0)
		count(ROOT);
	if (t->pid == (int)id && t->tgid == (int)(id >> 32))
		count(SAME_TASK);
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_unlink")
int enter(struct trace_event_raw_sys_enter *ctx)
{
	u32 tid = bpf_get_current_pid_tgid(), one = 1;
	char name[4] = {};

	bpf_probe_read_user_str(name, sizeof(name), (void *)ctx->args[0]);
	if (!ours(name))
		return 0;
	count(UNLINK_CALLS);
	bpf_map_update_elem(&under_way, &tid, &one, BPF_ANY);
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_unlink")
int leave(struct trace_event_raw_sys_exit *ctx)
{
	u32 tid = bpf_get_current_pid_tgid();

	if (!bpf_map_lookup_elem(&under_way, &tid))
		return 0;
	bpf_map_delete_elem(&under_way, &tid);
	if (ctx->ret == 0)
		count(UNLINK_DONE);
	return 0;
}

SEC("fexit/do_sys_openat2")
int opened(u64 *ctx)
{
	char name[4] = {};

	bpf_probe_read_user_str(name, sizeof(name), (void *)ctx[1]);
	if (ours(name) && (int)ctx[3] == -2)
		count(NOT_THERE);
	return 0;
}

SEC("ksyscall/unlink")
int calls(struct pt_regs *ctx)
{
	count(CALLS);
	return 0;
}
