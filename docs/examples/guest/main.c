typedef unsigned long u64;
typedef unsigned int u32;
typedef unsigned short u16;

struct boot_info {
	u64 magic, size, memory;
	u32 cpu, cpus;
	const char *cmdline;
	u64 cmdline_length, slots, slots_end; /* and more */
};

u64 gp_flags = 2; /* kernel text runs at its own addresses only: probes may be jumps */
u64 slots, slots_size; /* where probed instructions run */
extern char vectors[]; /* 33 of 16 bytes each */

static struct { u16 low, selector, type, middle; u32 high, zero; } idt[33];
static struct { u32 zero0; u64 rsp[3], zero1, ist[7], zero2; u16 zero3, iomap; } __attribute__((packed)) tss;
static u64 gdt[7] = { 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00cff3000000ffff, 0x00affb000000ffff };
static char traps[4096] __attribute__((aligned(16))); /* the stack of vectors 1 and 3 */

static void print(const char *s)
{
	for (; *s; s++)
		asm volatile("outb %0, $0xe9" :: "a"(*s));
}

static void number(u64 n)
{
	char digits[21], *p = digits + 20;

	*p = 0;
	do
		*--p = '0' + n % 10;
	while (n /= 10);
	print(p);
}

static void hex(const char *name, u64 n)
{
	int i;

	print(name);
	for (i = 60; i >= 0; i -= 4)
		print((char[]){ "0123456789abcdef"[n >> i & 15], 0 });
}

/* An exception that nothing expected. frame is on the stack: vector, error code, RIP. */
void fault(u64 *frame)
{
	u64 cr2;

	asm volatile("mov %%cr2, %0" : "=r"(cr2));
	print("exception ");
	number(frame[0]);
	hex(", error code 0x", frame[1]);
	hex(", at RIP 0x", frame[2]);
	hex(", CR2 0x", cr2);
	print("\n");
}

static void tables(void)
{
	struct { u16 limit; u64 base; } __attribute__((packed)) d;
	u64 t = (u64)&tss;
	int i;

	tss.ist[0] = (u64)(traps + sizeof traps);
	tss.iomap = sizeof tss;
	gdt[5] = (sizeof tss - 1) | (t & 0xffffff) << 16 | 0x89UL << 40 | (t >> 24 & 0xff) << 56;
	gdt[6] = t >> 32;
	for (i = 0; i < 33; i++) {
		u64 v = (u64)vectors + 16 * i;

		idt[i].low = v;
		idt[i].selector = 0x08;
		idt[i].type = 0x8e00 | (i == 1 || i == 3); /* an interrupt gate, with IST 1 */
		idt[i].middle = v >> 16;
		idt[i].high = v >> 32;
	}
	d.limit = sizeof gdt - 1;
	d.base = (u64)gdt;
	asm volatile("lgdt %0" :: "m"(d), "m"(gdt));
	d.limit = sizeof idt - 1;
	d.base = (u64)idt;
	asm volatile("lidt %0" :: "m"(d), "m"(idt));
	asm volatile("ltr %w0" :: "r"(0x28));
}

/* The function that is worth a probe: how many steps it takes from n to 1. */
__attribute__((noinline)) u64 collatz(u64 n)
{
	u64 steps = 0;

	for (; n != 1; steps++)
		n = n & 1 ? 3 * n + 1 : n / 2;
	return steps;
}

void start(struct boot_info *boot)
{
	u64 n, most = 0, of = 1;

	slots = boot->slots;
	slots_size = boot->slots_end - boot->slots;
	tables();
	print("first guest: up\n");
	for (n = 1; n <= 100; n++) {
		u64 steps = collatz(n);

		if (steps > most) {
			most = steps;
			of = n;
		}
		asm volatile("sti; hlt; cli"); /* until the next tick */
	}
	print("first guest: ");
	number(most);
	print(" steps from ");
	number(of);
	print("\n");
	asm volatile("outl %0, $0xf4" :: "a"(0)); /* the end, exit code 0 */
}
