/* Stacks that move under calls, as those of runtimes do that grow them, and coroutines. With 'k' first on the command line the old stack keeps its contents. */
#include "base.h"
#define ST 8192
static char sa[ST] __attribute__((aligned(4096))), sb[ST] __attribute__((aligned(4096)));
u64 gp_flags = 2;
u64 grown, bad, keep;
/* moves the current stack from one area to the other, all words that point into the old one are adjusted, and goes on there */
void move_stack(void);
asm(".text\n.type move_stack, @function\nmove_stack:\n push %rbp\n push %rbx\n mov %rsp, %rdi\n call do_move\n mov %rax, %rsp\n pop %rbx\n pop %rbp\n ret\n.size move_stack, .-move_stack\n");
__attribute__((used)) u64 do_move(u64 rsp)
{
	char *from = (rsp >= (u64)sa && rsp < (u64)sa + ST) ? sa : sb, *to = from == sa ? sb : sa;
	u64 off = rsp - (u64)from, i;
	for (i = off; i < ST; i += 8) {
		u64 w = *(u64 *)(from + i);
		if (w >= (u64)from && w < (u64)from + ST) w += to - from;
		*(u64 *)(to + i) = w;
	}
	for (i = off; !keep && i < ST; i += 8) *(u64 *)(from + i) = 0xdeaddeaddeaddeadUL; /* the old one is poisoned */
	grown++;
	return (u64)to + off;
}
noinline u64 leaf(u64 n) { move_stack(); asm volatile("" : "+r"(n)); return n + 1; }
noinline u64 rec(u64 n) { if (!n) return leaf(0); u64 r = rec(n - 1) + 1; asm volatile("" : "+r"(r)); return r; }
u64 tail(u64 n);
noinline u64 tail2(u64 n) { asm volatile("" : "+r"(n)); return n ? n * 2 : leaf(3); }
noinline u64 tail(u64 n) { asm volatile("" : "+r"(n)); return tail2(n + 1); }
void on_stack(u64 sp, void (*f)(void));
asm(".text\n.type on_stack, @function\non_stack:\n push %rbx\n mov %rsp, %rbx\n mov %rdi, %rsp\n push %rbx\n push %rbx\n call *%rsi\n pop %rbx\n pop %rbx\n mov %rbx, %rsp\n pop %rbx\n ret\n.size on_stack, .-on_stack\n");
static void body(void)
{
	u64 n;
	for (n = 0; n < 20; n++) {
		if (rec(n & 7) != (n & 7) + 1) bad++;
		if (tail(n) != (n + 1) * 2) bad++;
		if (n == 5 && tail(-1UL) != 4) bad++;
	}
}
/* coroutines: yield changes stacks inside of a probed function */
static u64 csp[2]; static char cst[4096] __attribute__((aligned(16)));
void cswitch(u64 *from, u64 *to);
asm(".text\n.type cswitch, @function\ncswitch:\n push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp, (%rdi)\n mov (%rsi), %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n.size cswitch, .-cswitch\n");
noinline u64 yielder(u64 who, u64 n) { u64 s = n; cswitch(&csp[who], &csp[!who]); asm volatile("" : "+r"(s)); return s * 3 + who; }
u64 co_done;
static void cobody(void) { u64 n; for (n = 0; ; n++) { if (yielder(1, n) != n * 3 + 1) bad++; co_done++; } }
void start(struct boot_info *b)
{
	u64 k, n;
	tables(b);
	keep = b->cmdline[0] == 'k';
	print("up\n");
	for (k = 0; k < 25; k++) {
		idle();
		on_stack((u64)sa + ST - 64, body);
	}
	u64 *p = (u64 *)(cst + sizeof cst - 16); *--p = (u64)cobody; for (n = 0; n < 6; n++) *--p = 0; csp[1] = (u64)p;
	for (n = 0; n < 100; n++) { if (yielder(0, n) != n * 3) bad++; if (!(n % 10)) idle(); }
	print("grown "); num(grown); print(" bad "); num(bad); print(" co "); num(co_done); print("\n");
	quit(bad != 0);
}
