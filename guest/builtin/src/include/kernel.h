/* Declarations of the kernel part, file by file. */
#ifndef GP_KERNEL_H
#define GP_KERNEL_H

#include "abi.h"
#include "task.h"
#include "types.h"

#define ENOENT 2
#define EAGAIN 11
#define EFAULT 14
#define EINVAL 22
#define ENAMETOOLONG 36
#define ENOSYS 38
#define EBADF 9
#define ECHILD 10

/* What the trap stubs of traps.S leave on the stack. */
struct trap_frame {
	u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8;
	u64 rax, rcx, rdx, rsi, rdi;
	u64 vector, error;
	u64 rip, cs, rflags, rsp, ss;
};

_Static_assert(sizeof(struct trap_frame) == 176, "traps.S counts on it");

/* ---- instructions without a C form ---- */

static inline void outb(u8 v, u16 port)
{
	__asm__ volatile("outb %0, %1" ::"a"(v), "Nd"(port));
}

static inline void outl(u32 v, u16 port)
{
	__asm__ volatile("outl %0, %1" ::"a"(v), "Nd"(port));
}

static inline u64 irq_save(void)
{
	u64 flags;

	__asm__ volatile("pushfq; popq %0; cli" : "=r"(flags)::"memory");
	return flags;
}

static inline void irq_restore(u64 flags)
{
	__asm__ volatile("pushq %0; popfq" ::"r"(flags) : "memory", "cc");
}

static inline void irq_enable(void)
{
	__asm__ volatile("sti" ::: "memory");
}

static inline void irq_disable(void)
{
	__asm__ volatile("cli" ::: "memory");
}

static inline void cpu_relax(void)
{
	__asm__ volatile("pause" ::: "memory");
}

static inline u64 read_cr2(void)
{
	u64 v;

	__asm__ volatile("mov %%cr2, %0" : "=r"(v));
	return v;
}

static inline u64 atomic_add_return(u64 *p, u64 n)
{
	return __atomic_add_fetch(p, n, __ATOMIC_SEQ_CST);
}

/* ---- spinlock.c ---- */

struct spinlock {
	u32 locked;
};

u64 spin_lock_irqsave(struct spinlock *l);
void spin_unlock_irqrestore(struct spinlock *l, u64 flags);

/* ---- boot.c, cmdline.c ---- */

struct options {
	u64 rounds; /* 0: run for ever */
	bool quiet, nouser, idle, bench, busy, int3, alias;
	char crash[16];
};

extern struct options options;
extern struct guest_profile gp_profile;
extern struct boot_info boot[MAX_CPUS];
extern u32 ncpus;

void parse_cmdline(const char *s, u64 len);

/* ---- cpu.c ---- */

#define IST_DB 1
#define IST_BP 2
#define IST_NMI 3
#define IST_DF 4

struct tss {
	u32 reserved0;
	u64 rsp[3];
	u64 reserved1;
	u64 ist[7];
	u64 reserved2;
	u16 reserved3;
	u16 iomap;
} __attribute__((packed));

extern struct tss tss[MAX_CPUS];

void idt_init(void);
void cpu_init(u32 cpu);

/* ---- console.c ---- */

void kprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void console_panic_mode(void);

/* ---- panic.c ---- */

void NORETURN guest_exit(u32 code);
void NORETURN panic(const char *why, struct trap_frame *f);
void crash_on_purpose(const char *how);

/* ---- trap.c, fault.c ---- */

extern u64 exec_lo[2], exec_size[2];
extern u64 foreign_bp_count, foreign_db_count, nmi_count, spurious_irqs;
extern u64 exceptions_fixed;

void exc_dispatch(struct trap_frame *f);
bool fixup_exception(struct trap_frame *f);
s64 fault_load(const void *addr);
s64 fault_gp(void);
s64 fault_divide(u64 a, u64 b);
s64 fault_ud(void);
s64 fault_store(void *addr);
long copy_bytes_fixup(void *dst, const void *src, u64 n);
long strncpy_fixup(char *dst, const char *src, u64 n);

/* ---- timer.c, net.c ---- */

extern volatile u64 jiffies;
extern u64 cpu_ticks[MAX_CPUS];

void timer_interrupt(struct trap_frame *f);

struct sk_buff {
	u32 saddr, daddr;
	u16 sport, dport;
	u32 seq;
	u16 len;   /* bytes of data in use */
	u16 check; /* internet checksum of the data and the pseudo header */
	u8 data[24];
};

int tcp_v4_rcv(struct sk_buff *skb);
void net_tick(u32 cpu, u64 seq);
extern u64 tcp_segments[MAX_CPUS];

/* ---- fs.c, syscall.c, call.c ---- */

long sys_open(const char *path, int flags, int mode);
long vfs_read(int fd, char *buf, u64 count, u64 pos);
long vfs_write(int fd, const char *buf, u64 count);
void do_syscall(struct trap_frame *f);
void call_service(u64 unused);
void call_abort(u64 vector) NORETURN;
void call_fault_exit(u64 recover_sp) NORETURN;
u64 call_protected(u64 fn, u64 *args, u64 *recover_sp);

/* ---- workload.c, selfcheck.c ---- */

extern u64 workload_rounds[MAX_CPUS], user_rounds[MAX_CPUS];
extern u64 selfcheck_failures;

extern const u64 user_stacks_base; /* user/start.S */

void workload_start(u32 cpu);
void workload_finished(u32 cpu, bool user, u64 sum);
void user_start(u32 cpu);
void selfcheck_fail(u32 code, u64 got, u64 want);
u64 fork_child(u64 seed);
u64 sleep_forever(u64 unused);
void kworker(u64 unused);
void work_variables(u64 seed);

/* ---- strings.c ---- */

void *memcpy(void *dst, const void *src, u64 n);
void *memset(void *dst, int c, u64 n);
bool str_eq(const char *a, const char *b);
void str_copy(char *dst, const char *src, u64 size);

#endif
