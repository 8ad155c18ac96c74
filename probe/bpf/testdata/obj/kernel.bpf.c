/* What a program asks of the guest's kernel: types, options, symbols, functions. */
#include "../../../../docs/examples/guestprobe.h"

static u64 (*bpf_get_current_task)(void) = (void *)35;

struct cred {
	u32 uid;
} __attribute__((preserve_access_index));

struct task_struct {
	const struct cred *cred;
	int pid;
	long never;
} __attribute__((preserve_access_index));

struct gone {
	int field;
} __attribute__((preserve_access_index));

enum state { RUNNING, STOPPED = 7 };
enum libbpf_tristate { TRI_NO, TRI_YES, TRI_MODULE };

#define OPTION __attribute__((section(".kconfig")))
#define SYMBOL __attribute__((section(".ksyms")))
#define exists(x) __builtin_preserve_field_info(x, 2)
#define there(t) __builtin_preserve_type_info(*(typeof(t) *)0, 0)
#define read(to, from) bpf_probe_read_kernel(&to, sizeof(to), &(from))

extern unsigned LINUX_KERNEL_VERSION OPTION;
extern unsigned CONFIG_HZ OPTION;
extern _Bool CONFIG_SMP OPTION;
extern char CONFIG_LETTER OPTION;
extern enum libbpf_tristate CONFIG_MODULE OPTION;
extern const char CONFIG_TEXT[6] OPTION;
extern u64 CONFIG_ABSENT OPTION __attribute__((weak));
extern const void jiffies SYMBOL;
extern const void nothing SYMBOL __attribute__((weak));
extern void kernel_function(void *) SYMBOL __attribute__((weak));

struct answer {
	u32 pid, uid, version, hz, smp, letter, module, stopped;
	u64 absent, jiffies, nothing, never, gone;
	char text[8];
} answer;

SEC("kprobe/vfs_read")
int ask(struct pt_regs *ctx)
{
	struct task_struct *t = (void *)bpf_get_current_task();
	const struct cred *c = 0;

	read(answer.pid, t->pid);
	read(c, t->cred);
	read(answer.uid, c->uid);
	answer.version = LINUX_KERNEL_VERSION;
	answer.hz = CONFIG_HZ;
	answer.smp = CONFIG_SMP;
	answer.letter = CONFIG_LETTER;
	answer.module = CONFIG_MODULE;
	answer.absent = CONFIG_ABSENT;
	for (int i = 0; i < 6; i++)
		answer.text[i] = CONFIG_TEXT[i];
	answer.jiffies = (u64)&jiffies;
	answer.nothing = (u64)&nothing;
	answer.stopped = __builtin_preserve_enum_value(*(enum state *)STOPPED, 1);
	if (exists(t->never))
		read(answer.never, t->never);
	else
		answer.never = 42;
	answer.gone = there(struct gone) ? ((struct gone *)ctx)->field : 43;
	if (kernel_function)
		kernel_function(t);
	return 0;
}

SEC("kprobe/vfs_write")
int needs(struct pt_regs *ctx)
{
	return ((struct task_struct *)ctx->di)->never;
}

SEC("kretprobe/vfs_write")
int calls(struct pt_regs *ctx)
{
	if (ctx->ax)
		kernel_function(ctx);
	return 0;
}
