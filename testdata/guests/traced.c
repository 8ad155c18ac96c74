/* A string instruction that is repeated under the trap flag: each iteration ends with a debug exception. */
#define OWN_TRAP
#include "base.h"
u64 gp_flags __attribute__((aligned(8))) = 2;
char buf[64];
u64 n, sum, at[64];
void fill(void);
void trap_c(struct frame *f)
{
	if (f->vec == 1) {
		n++;
		at[(f->rip - (u64)fill) & 63]++;
		sum = sum * 31 + (f->rip - (u64)fill) + f->rcx * 1000;
		return;
	}
	print("trap "); num(f->vec); print(" rip "); hex(f->rip); print("\n");
	quit(100 + f->vec);
}
asm(".text\n.balign 16\n.globl fill\n.type fill,@function\nfill:\n push %rdi\n mov $buf,%rdi\n xor %eax,%eax\n mov $5,%ecx\n"
    " pushf\n orl $0x100,(%rsp)\n popf\n nop\n rep stosb\n lea 1(%rax),%rax\n nop\n pushf\n andl $~0x100,(%rsp)\n popf\n pop %rdi\n ret\n.size fill,.-fill\n");
void start(struct boot_info *b)
{
	u64 i;
	tables(b);
	print("up\n");
	for (i = 0; i < 10; i++) idle();
	for (i = 0; i < 20; i++) fill();
	for (i = 0; i < 64; i++)
		if (at[i]) { print("+"); num(i); print(" "); num(at[i]); print("\n"); }
	print("traps "); num(n); print(" sum "); num(sum); print("\n");
	quit(0);
}
