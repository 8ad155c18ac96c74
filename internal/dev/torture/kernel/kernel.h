/*
 * The kernel of the tortured guests: as small as can be. It starts tasks of user
 * code, switches between them at timer ticks, sends them signals at arbitrary
 * places, maps pages when they are touched, and writes down every exception with
 * all registers, which is what the runs are compared by. The offsets of what the
 * host reads and writes are those of image.go and result.go.
 */
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;

#define MAX_CPUS 8
#define MAX_TASKS 16
#define LOG 64

/* What the trap entries push. */
struct frame {
	u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi;
	u64 vector, error, rip, cs, rflags, rsp, ss;
};

/* What the host fills in, for each task. */
struct config {
	u64 rip, rsp, rdi;
	u64 handler;		/* of signals, 0: none */
	u64 handler_rsp;	/* its stack; 0: the interrupted one */
	u64 pager_lo, pager_hi;	/* pages that are there when they are touched */
	u64 sig_every;		/* ticks from one signal to the next */
	u64 kernel;		/* it is kernel code */
	u64 other_rsp;		/* top of a second stack that it moves to; 0: none */
};

/* A second mapping of text, which the host asks for. */
struct alias {
	u64 va, pa;
	u64 pages;		/* of 4 KiB; 0: there is none */
	u64 flags;		/* ALIAS_* */
};
#define MAX_ALIASES 2
#define ALIAS_USER 4		/* the bit of the page tables */
#define ALIAS_LARGE 0x80	/* likewise: one page of 2 MiB */
#define ALIAS_LATE 1		/* mapped when a task asks for it, not at boot */

/* What the guest's own tracer does, which the host says. */
#define TRACER_BACK 1		/* writes back the text that it has read */
#define TRACER_TELLS 2		/* tells the host of each write */
#define TRACER_YIELDS 4		/* puts no breakpoint where an int3 or a jump is already */

/* What the host reads afterwards. */
struct result {
	struct frame regs;	/* at the end */
	u64 state;		/* 0 running, 1 done, 2 killed */
	u64 exceptions, hash;
	u64 ticks, signals;
	struct {
		u64 vector, rip, rsp, rflags, addr, hash;
	} log[LOG];		/* the first exceptions */
};

struct task {
	struct frame ctx;
	struct frame interrupted; /* by a signal */
	u64 in_signal;
	u64 kept_at, kept_size;	/* text that it has read */
	u8 kept[64];
};

/* A breakpoint of the guest's own tracer. */
struct breakpoint {
	u8 *text;		/* where it can be written, whatever addresses run it */
	u64 users;		/* 0: it is not there, but a trap may be on its way */
	u8 old;
};
#define MAX_BREAKPOINTS 256
