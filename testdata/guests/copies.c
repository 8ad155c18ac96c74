/* Stacks that are copied: both copies return; fibers; a jump out of a copied frame; recursion that is copied whole. */
#include "base.h"
u64 gp_flags = 2;
#define ST 16384
#define N 6
static char st[N][ST] __attribute__((aligned(4096)));
u64 bad, done, host, cur; static u64 sps[N];
/* park(): back to the host context, the fiber's stack pointer is kept */
u64 park(u64 who);
void run(u64 who), spawn(u64 who, u64 (*f)(u64), u64 x);
asm(".text\n.type park,@function\npark: push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n mov cur(%rip),%rax\n mov %rsp, sps(,%rax,8)\n mov host(%rip),%rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n.size park,.-park\n"
".type run,@function\nrun: push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp,host(%rip)\n mov %rdi,cur(%rip)\n mov sps(,%rdi,8),%rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n mov cur(%rip),%rax\n ret\n.size run,.-run\n"
".type spawn,@function\nspawn: push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp,host(%rip)\n mov %rdi,cur(%rip)\n mov %rdi,%rax\n inc %rax\n shl $14,%rax\n lea st(%rax),%rsp\n sub $64,%rsp\n mov %rdx,%rdi\n call *%rsi\n mov host(%rip),%rsp\n mov %rax,result(%rip)\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n.size spawn,.-spawn\n");
u64 result;
static void copy(u64 from, u64 to, int poison)
{
	u64 off = sps[from] - (u64)st[from], i;
	for (i = off; i < ST; i += 8) { u64 w = *(u64 *)(st[from] + i); if (w - (u64)st[from] < ST) w += st[to] - st[from]; *(u64 *)(st[to] + i) = w; }
	sps[to] = (u64)st[to] + off;
	if (poison) for (i = 0; i < ST; i += 8) *(u64 *)(st[from] + i) = 0xdeaddeaddeaddeadUL;
}
noinline u64 inner(u64 n) { park(0); asm volatile("" : "+r"(n)); return n + 1; }
noinline u64 rec(u64 n) { if (!n) return inner(5); u64 r = rec(n - 1) + 1; asm volatile("" : "+r"(r)); return r; }
noinline u64 rec2(u64 n) { u64 a; if (!n) { park(0); return 7; } a = rec2(n - 1); park(0); asm volatile("" : "+r"(a)); return a + n; }
struct jb { u64 sp, bp, ip, bx; };
u64 sj(struct jb *); void lj(struct jb *, u64);
asm(".text\n.type sj,@function\nsj: mov (%rsp),%rax\n mov %rax,16(%rdi)\n lea 8(%rsp),%rax\n mov %rax,(%rdi)\n mov %rbp,8(%rdi)\n mov %rbx,24(%rdi)\n xor %eax,%eax\n ret\n.size sj,.-sj\n.type lj,@function\nlj: mov %rsi,%rax\n mov (%rdi),%rsp\n mov 8(%rdi),%rbp\n mov 24(%rdi),%rbx\n jmp *16(%rdi)\n.size lj,.-lj\n");
static struct jb *cb;
noinline u64 deep(u64 n) { if (!n) lj(cb, 3); u64 r = deep(n - 1); asm volatile("" : "+r"(r)); return r + 1; }
noinline u64 over(u64 n) { struct jb b; u64 k; cb = &b; k = sj(&b); if (k) { asm volatile("" : "+r"(k)); return k; } park(0); deep(n); return 99; }
#define EXPECT(x, y) do { u64 _x = (x); if (_x != (y)) { bad++; print("line "); num(__LINE__); print(" got "); num(_x); print("\n"); } } while (0)
void start(struct boot_info *b)
{
	u64 k, i; tables(b); print("up\n");
	for (k = 0; k < 40; k++) {
		idle();
		/* recursion copied whole; three copies return in any order */
		spawn(0, rec, 9); copy(0, 1, 0); copy(1, 2, 0);
		run(k % 3); EXPECT(result, 15); run((k + 1) % 3); EXPECT(result, 15); run((k + 2) % 3); EXPECT(result, 15);
		/* moved twice, poisoned */
		spawn(0, rec, 4); copy(0, 4, 1); copy(4, 1, 1); run(1); EXPECT(result, 10);
		/* parks at each level; moved in between */
		spawn(0, rec2, 5); for (i = 0; i < 6; i++) { copy(i % 2, (i + 1) % 2, k & 1); run((i + 1) % 2); } EXPECT(result, 7 + 15);
		/* a fork of a fiber between: both finish, interleaved */
		spawn(0, rec2, 3); copy(0, 4, 0); for (i = 0; i < 4; i++) { run(0); if (i < 3) run(4); } EXPECT(result, 13); run(4); EXPECT(result, 13);
		/* long jump over a frame on a moved stack */
		spawn(2, over, 3); copy(2, 5, 1); cb = (struct jb *)((u64)cb - (u64)st[2] + (u64)st[5]); run(5); EXPECT(result, 3);
		/* kept for long: copy 3 made in round k returns in round k+1.. */
		if (k % 5 == 0) { spawn(0, rec, 2); copy(0, 3, 0); run(0); EXPECT(result, 8); }
		if (k % 5 == 4) { run(3); EXPECT(result, 8); }
	}
	print("end bad "); num(bad); print("\n"); quit(bad != 0);
}
