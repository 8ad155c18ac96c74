#include "shared.h"
long work2(struct list *l, long n);
static long calls = 1;
static long visit(struct item *i, int n) { return i->weight + n; }
static struct item it = { 0, 5, GREEN, "item" };
struct list list = { &it, 1, { 1, 2, 3, 4 }, { 77 }, 5, -6, visit };
__attribute__((noinline)) long work1(struct list *l, long n)
{
	long r = heavy(l, n + 1);
	__asm__ volatile("" : "+r"(r), "+m"(calls));
	return r + calls;
}
void _start(void)
{
	long n;
	for (n = 0; n < 100; n++) {
		work1(&list, n);
		work2(&list, n);
		__asm__ volatile("" : : "r"(list.visit(list.head, (int)n)));
	}
	for (;;)
		__asm__ volatile("hlt");
}
