/* Programs of the tracepoints of system calls. */
#include "../../../../docs/examples/guestprobe.h"

struct trace_entry {
	u64 header;
};

struct trace_event_raw_sys_enter {
	struct trace_entry ent;
	long id;
	unsigned long args[6];
} __attribute__((preserve_access_index));

struct trace_event_raw_sys_exit {
	struct trace_entry ent;
	long id;
	long ret;
} __attribute__((preserve_access_index));

u64 id, args, ret;

SEC("tracepoint/syscalls/sys_enter_openat")
int enter(struct trace_event_raw_sys_enter *ctx)
{
	id = ctx->id;
	for (int i = 0; i < 6; i++)
		args = args << 8 | (u8)ctx->args[i];
	return 0;
}

SEC("tp/syscalls/sys_exit_openat")
int leave(struct trace_event_raw_sys_exit *ctx)
{
	id = ctx->id;
	ret = ctx->ret;
	return 0;
}
