/* A kernel whose heap begins right behind its image: it maps a page when one is touched that is not there. Jumps that the engine writes must not
 * need pages there. With 'b' first on the command line it checks that what its boot-info block says of boards is not mapped at the start. */
#define OWN_TRAP
#include "base.h"
u64 gp_flags __attribute__((aligned(8))) = 2;
extern char heap[];
#define HEAP (64UL << 20)
static u64 used, tabs[40][512] __attribute__((aligned(4096)));
static u64 nt;
#define PA(x) ((u64)(x) - 0xffffffff80000000UL)
static u64 *entry(u64 va, int make)
{
	u64 cr3, *t;
	int l;
	asm volatile("mov %%cr3, %0" : "=r"(cr3));
	t = (u64 *)(cr3 & ~0xfffUL);
	for (l = 39; l > 12; l -= 9) {
		u64 *e = &t[va >> l & 511];
		if (!(*e & 1)) {
			if (!make) return 0;
			*e = PA(tabs[nt++]) | 3;
		}
		t = (u64 *)(*e & 0xffffffffff000UL);
	}
	return &t[va >> 12 & 511];
}
void trap_c(struct frame *f)
{
	u64 cr2;
	asm volatile("mov %%cr2, %0" : "=r"(cr2));
	if (f->vec == 14 && cr2 - (u64)heap < HEAP && !(f->err & 1)) {
		*entry(cr2, 1) = (0x1000000 + 4096 * used++) | 3;
		return;
	}
	print("trap "); num(f->vec); print(" err "); hex(f->err); print(" rip "); hex(f->rip); print(" cr2 "); hex(cr2); print("\n");
	quit(100 + f->vec);
}
/* Each with instructions of other lengths, so that jumps at their entries lead elsewhere. */
u64 hash24(u64 n), hash33(u64 n), hash41(u64 n), hash15(u64 n);
asm(".text\n.balign 16\n.type hash24,@function\nhash24: mov %edi,%eax\n imul $0x1e3779b1,%rdi,%rdi\n xor %rdi,%rax\n ret\n.size hash24,.-hash24\n"
    ".balign 16\n.type hash33,@function\nhash33: mov %rdi,%rax\n shr $7,%rdi\n xor %rdi,%rax\n ret\n.size hash33,.-hash33\n"
    ".balign 16\n.type hash41,@function\nhash41: imul $31,%rdi,%rax\n inc %eax\n add %rdi,%rax\n ret\n.size hash41,.-hash41\n"
    ".balign 16\n.type hash15,@function\nhash15: push %rdi\n mov $0x12345,%eax\n add %rdi,%rax\n pop %rdi\n ret\n.size hash15,.-hash15\n");
void start(struct boot_info *b)
{
	u64 i, s = 0, bad = 0;
	tables(b);
	print("up\n");
	for (i = 0; i < 10; i++) idle();
	if (b->cmdline[0] == 'b') {
		for (i = 0; i < 2; i++) {
			u64 lo = ((u64 *)b)[16 + 2 * i], hi = ((u64 *)b)[17 + 2 * i], a;
			if (!lo || lo >= hi || (lo < (u64)heap + HEAP && hi > (u64)heap)) bad++;
			for (a = lo; a < hi; a += 64 * 4096) {
				u64 *e = entry(a, 0);
				if (e && *e & 1) bad++;
			}
		}
		print("bad "); num(bad); print("\n");
		quit(bad != 0);
	}
	for (i = 0; i < HEAP / 4096; i += i >= 1900 && i < 2140 ? 1 : 61) *(u64 *)(heap + i * 4096 + 8) = hash24(i) + hash33(i) + hash41(i) + hash15(i);
	for (i = 0; i < HEAP / 4096; i += i >= 1900 && i < 2140 ? 1 : 61) s = hash24(s + *(u64 *)(heap + i * 4096 + 8)) ^ hash41(s);
	print("pages "); num(used); print(" sum "); num(s); print("\n");
	quit(0);
}
