// A guest of C++ with arguments that C does not have: references, classes by value, and names that the linker mangles.
#include "base.h"
void trap_c(struct frame *f) { quit(100 + (u32)f->vec); }
} // extern "C"
#define noinline __attribute__((noinline, noclone))
#define KEEP(x) asm volatile("" : : "r"(x) : "memory")

struct point { int x, y; };
struct range { long from; int n; };
struct odd { char c[3]; };
struct big { long a[4]; };
struct counted { long n; counted(long v) : n(v) {} counted(const counted &o) : n(o.n + 1) {} ~counted() { KEEP(n); } };
typedef point &point_ref;

namespace shapes {
struct circle {
	point at;
	int r;
	noinline long area(long scale) const { KEEP(this); return r * scale; }
};
template <typename T> noinline T twice(T v) { KEEP(v); return v * 2; }
}

noinline long references(int &a, const long &b, unsigned char &c, point_ref p, int &&r)
{
	KEEP(&a);
	long s = a + b + c + p.x + p.y + r;
	KEEP(s);
	return s;
}
noinline long values(point p, range r, odd o, big b)
{
	KEEP(p.x);
	long s = p.x + p.y + r.from + r.n + o.c[1] + b.a[2];
	KEEP(s);
	return s;
}
noinline long object(counted c, long n)
{
	KEEP(n);
	return c.n + n;
}

struct thick { long width; };
struct heavy { long a[3]; heavy(long v) : a{ v } {} heavy(const heavy &o) : a{ o.a[0] } {} ~heavy() { KEEP(a[0]); } };
struct ring : shapes::circle, thick { static long count; int inner; };
long ring::count = 99;
noinline long rings(ring *g, heavy h, long n)
{
	KEEP(g);
	return g->inner + g->r + g->width + h.a[0] + n;
}

static ring one;
static shapes::circle circle = { { 5, -6 }, 7 };
static int number = -3;
static long large = 1L << 40;
static unsigned char small = 200;

extern "C" void start(struct boot_info *b)
{
	tables(b);
	for (long n = 0; n < 1000000; n++) {
		idle();
		KEEP(references(number, large, small, circle.at, 9));
		point p = { 1, -2 };
		range r = { 1L << 33, 4 };
		odd o = { { 'a', 'b', 'c' } };
		big g = { { 10, 20, 30, 40 } };
		KEEP(values(p, r, o, g));
		KEEP(object(counted(17), 18));
		KEEP(circle.area(3));
		KEEP(shapes::twice(n));
		one.at.x = 11;
		one.r = 12;
		one.width = 13;
		one.inner = 14;
		KEEP(rings(&one, heavy(15), 16));
	}
	quit(0);
}
