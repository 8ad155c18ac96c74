/* Functions of the kernel that programs call: counting loops, locks and casts. */
#include "../../../../docs/examples/guestprobe.h"

#define KSYM __attribute__((section(".ksyms")))
#define MAPS __attribute__((section(".maps"), used))

struct bpf_iter_num {
	u64 opaque[1];
};

struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) KSYM __attribute__((weak));
extern int *bpf_iter_num_next(struct bpf_iter_num *it) KSYM __attribute__((weak));
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) KSYM __attribute__((weak));
extern void bpf_rcu_read_lock(void) KSYM;
extern void bpf_rcu_read_unlock(void) KSYM;
extern struct pt_regs *bpf_cast_to_kern_ctx(void *ctx) KSYM;
extern void *bpf_rdonly_cast(const void *obj, u32 type) KSYM;
extern void bpf_nothing_known(void) KSYM __attribute__((weak));

struct {
	int (*type)[2]; /* array */
	u32 *key;
	u64 *value;
	int (*max_entries)[8];
} results MAPS;

static u64 (*bpf_get_current_task)(void) = (void *)35;

INLINE void put(u32 at, u64 value)
{
	u64 *p = bpf_map_lookup_elem(&results, &at);

	if (p)
		*p = value;
}

/* bpf_for of libbpf, and what its functions return. */
SEC("kprobe/count")
int count(struct pt_regs *ctx)
{
	int start = PT_REGS_PARM1(ctx), end = PT_REGS_PARM2(ctx), n = 0, *i;
	struct bpf_iter_num it;
	s64 sum = 0;

	bpf_rcu_read_lock();
	put(0, bpf_iter_num_new(&it, start, end));
	while ((i = bpf_iter_num_next(&it)) && n < 1000) {
		n++;
		sum += *i;
	}
	put(1, n);
	put(2, sum);
	put(3, bpf_iter_num_next(&it) != 0);
	bpf_iter_num_destroy(&it);
	put(4, it.opaque[0]);
	bpf_rcu_read_unlock();
	put(5, bpf_cast_to_kern_ctx(ctx)->dx);
	return 0;
}

/* A loop that the machine may end (cond_break of the kernel's bpf_experimental.h). */
SEC("kprobe/forever")
int forever(struct pt_regs *ctx)
{
	u64 n = 0, most = PT_REGS_PARM1(ctx);

	for (;;) {
		asm volatile goto("may_goto %l[out]" ::::out);
		if (n == most)
			break;
		asm volatile("" : "+r"(n));
		n++;
	}
out:
	put(6, n);
	return 0;
}

SEC("kprobe/exists")
int exists(struct pt_regs *ctx)
{
	u64 have = 0;

	if (bpf_iter_num_new)
		have |= 1;
	if (bpf_nothing_known)
		have |= 2;
	return have;
}

SEC("kprobe/cast")
int cast(struct pt_regs *ctx)
{
	struct task_struct *t = bpf_rdonly_cast((void *)bpf_get_current_task(), __builtin_btf_type_id(*(struct task_struct *)0, 1));

	return t->pid;
}

char LICENSE[] SEC("license") = "GPL";
