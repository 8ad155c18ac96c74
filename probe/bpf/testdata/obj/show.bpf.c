/* Prints values by their types in the kernel, which has them at other numbers. */
#include "../../../../docs/examples/guestprobe.h"

struct btf_ptr {
	void *ptr;
	u32 type_id, flags;
};

static long (*bpf_snprintf_btf)(char *str, u32 size, struct btf_ptr *ptr, u32 ptr_size, u64 flags) = (void *)149;

#define type_id(type) __builtin_btf_type_id(*(typeof(type) *)0, 1)

struct inode { int x; };
struct file { int x; };
struct all { int x; };
enum state { RUNNING, STOPPED = 4 };

char text[512];
char last = 'x';
s64 length;
u32 id;

SEC("fentry/vfs_read")
int show(u64 *ctx)
{
	struct btf_ptr p = { .ptr = (void *)ctx[0] };

	switch (ctx[1]) {
	case 0: p.type_id = type_id(struct inode); break;
	case 1: p.type_id = type_id(int); break;
	case 2: p.type_id = type_id(enum state); break;
	case 3: p.type_id = type_id(struct all); break;
	case 4: p.type_id = 1000; break;
	case 5: p.type_id = type_id(struct file); break;
	}
	length = bpf_snprintf_btf(text, sizeof(text), &p, sizeof(p), ctx[2]);
	return 0;
}

/* Of the program's own memory, with a text that is too short. */
SEC("kprobe/own")
int own(struct pt_regs *ctx)
{
	static int value = -1234;
	struct btf_ptr p = { .ptr = &value, .type_id = type_id(int) };

	length = bpf_snprintf_btf(text, PT_REGS_PARM1(ctx) & 15, &p, PT_REGS_PARM2(ctx) & 16, PT_REGS_PARM3(ctx));
	return 0;
}
