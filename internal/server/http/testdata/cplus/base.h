typedef unsigned long u64; typedef unsigned int u32; typedef unsigned short u16; typedef unsigned char u8; typedef long s64;
extern "C" {
struct boot_info { u64 magic, size, memory; u32 cpu, cpus; const char *cmdline; u64 cmdline_length, slots, slots_end, us, us_end; };
u64 slots, slots_size;
extern char vectors[];
static struct { u16 low, selector, type, middle; u32 high, zero; } idt[33];
static struct { u32 zero0; u64 rsp[3], zero1, ist[7], zero2; u16 zero3, iomap; } __attribute__((packed)) tss;
static u64 gdt[7] = { 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00cff3000000ffff, 0x00affb000000ffff };
static char traps[4096] __attribute__((aligned(16)));
struct frame { u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, vec, err, rip, cs, flags, rsp, ss; };
static void print(const char *s) { for (; *s; s++) asm volatile("outb %0, $0xe9" :: "a"(*s)); }
static inline void hex(u64 n) { char d[17], *p = d + 16; *p = 0; do *--p = "0123456789abcdef"[n & 15]; while (n >>= 4); print(p); }
static inline void num(u64 n) { char d[21], *p = d + 20; *p = 0; do *--p = '0' + n % 10; while (n /= 10); print(p); }
static void tables(struct boot_info *b)
{
	struct { u16 limit; u64 base; } __attribute__((packed)) d;
	u64 t = (u64)&tss; int i;
	slots = b->slots; slots_size = b->slots_end - b->slots;
	tss.ist[0] = (u64)(traps + sizeof traps); tss.iomap = sizeof tss;
	gdt[5] = (sizeof tss - 1) | (t & 0xffffff) << 16 | 0x89UL << 40 | (t >> 24 & 0xff) << 56;
	gdt[6] = t >> 32;
	for (i = 0; i < 33; i++) { u64 v = (u64)vectors + 16 * i;
		idt[i].low = v; idt[i].selector = 8; idt[i].type = 0x8e00 | (i == 1 || i == 3); idt[i].middle = v >> 16; idt[i].high = v >> 32; }
	d.limit = sizeof gdt - 1; d.base = (u64)gdt;
	asm volatile("lgdt %0" :: "m"(d), "m"(gdt));
	d.limit = sizeof idt - 1; d.base = (u64)idt;
	asm volatile("lidt %0" :: "m"(d), "m"(idt));
	asm volatile("ltr %w0" :: "r"(0x28));
}
static inline void idle(void) { asm volatile("sti; hlt; cli" ::: "memory"); }
static inline void quit(u32 c) { asm volatile("outl %0, $0xf4" :: "a"(c)); for (;;) asm volatile("hlt"); }

