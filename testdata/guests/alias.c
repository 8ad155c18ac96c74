/*
 * Kernel text that also runs at a second address, from the 21st call of each function on.
 * The first character of the command line says how.
 */
#include "base.h"
u64 bad, v1 = 11;
noinline u64 fn(u64 n) { asm volatile("" : "+r"(n)); return n * 5; }
noinline u64 fn2(u64 n) { return n + *(volatile u64 *)&v1; }        
u64 fn3(u64 n);
asm(".text\n.type fn3,@function\n.globl fn3\nfn3: mov v1(%rip), %rax\n add %rdi,%rax\n push %rbx\n mov %rax,%rbx\n call 1f\n pop %rbx\n ret\n.size fn3,.-fn3\n.type hlp,@function\nhlp:1: lea 1(%rbx),%rax\n ret\n.size hlp,.-hlp\n");
/* a function whose first instruction crosses a page boundary, the second page alone aliased differently */
u64 fn4(u64 n);
asm(".text\n.balign 4096\n.fill 4093,1,0xcc\n.type fn4,@function\n.globl fn4\nfn4: lea 7(%rdi,%rdi,2),%rax\n ret\n.size fn4,.-fn4\n");
static u64 t1[512] __attribute__((aligned(4096))), t2[512] __attribute__((aligned(4096))), t3[512] __attribute__((aligned(4096))), t4[512] __attribute__((aligned(4096)));
#define PA(x) ((u64)(x) - 0xffffffff80000000UL)
static u64 cr3(void) { u64 v; asm volatile("mov %%cr3,%0" : "=r"(v)); return v; }
static void setcr3(u64 v) { asm volatile("mov %0,%%cr3" :: "r"(v) : "memory"); }
static void run(u64 off, u64 i)
{
	u64 (*volatile g)(u64) = (void *)((u64)fn + off), (*volatile g2)(u64) = (void *)((u64)fn2 + off), (*volatile g3)(u64) = (void *)((u64)fn3 + off), (*volatile g4)(u64) = (void *)((u64)fn4 + off);
	if (g(i) != i * 5) bad++;
	if (g2(i) != i + 11) bad++;
	if (g3(i) != i + 12) bad++;
	if (g4(i) != 3 * i + 7) bad++;
}
void start(struct boot_info *b)
{
	u64 i, k, off = 0, *top = (u64 *)(cr3() & ~0xfffUL), base = 0xffff960000000000UL; char c = b->cmdline[0];
	tables(b); print("up\n");
	for (i = 0; i < 20; i++) { idle(); run(0, i); }
	switch (c) {
	case '0': /* the loader's identity map */ off = -0xffffffff80000000UL; break;
	case '1': /* a second top-level entry */ top[300] = top[511]; off = base + (0xffffffff80000000UL & 0x7fffffffffUL) - 0xffffffff80000000UL; break;
	case '2': /* 2 MiB pages from 0 */ for (i = 0; i < 512; i++) t2[i] = i << 21 | 0x83; t1[0] = PA(t2) | 3; top[300] = PA(t1) | 3; off = base - 0xffffffff80000000UL; break;
	case '3': /* 4 KiB pages, at a multiple of 4 GiB from the text */ for (i = 0; i < 512; i++) t3[i] = (0x200000 + (i << 12)) | 3;
		t2[1] = PA(t3) | 3; t1[510 - 4] = PA(t2) | 3; top[300] = PA(t1) | 3; off = 0xffff960000000000UL + (506UL << 30) + 0x200000 - 0xffffffff80200000UL; break;
	case '4': /* new top level table, made later */ for (i = 0; i < 512; i++) t4[i] = top[i]; t4[300] = top[0]; setcr3(PA(t4)); off = base - 0xffffffff80000000UL; break;
	}
	print("alias "); hex(off); print("\n");
	for (i = 0; i < 100; i++) { if (i % 5 == 0) idle(); run(off, i); run(0, i); }
	print("end bad "); num(bad); print("\n"); quit(bad != 0);
}
