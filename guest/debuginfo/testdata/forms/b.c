#include "shared.h"
static long calls = 2;
typedef struct { short x, y; } point;
static __attribute__((noinline)) long far(point p, double scale, const char *name) { __asm__ volatile("" : "+m"(calls)); return p.x + p.y + name[0] + (long)scale; }
__attribute__((noinline)) long work2(struct list *l, long n)
{
	point p = { 3, (short)n };
	long r = heavy(l, n + 2);
	__asm__ volatile("" : "+r"(r));
	return r + far(p, 1.5, l->head->label);
}
