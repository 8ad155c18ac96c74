// Types and parameters that C does not have, and those of C that are passed in places of their own. Each function keeps its
// parameters, so that debug information has them where they were passed.
typedef unsigned long u64;
typedef int v4si __attribute__((vector_size(16)));
typedef float v2sf __attribute__((vector_size(8)));
#define noinline __attribute__((noinline, noipa))
#ifdef __clang__
#undef noinline
#define noinline __attribute__((noinline))
#endif
#define KEEP(x) asm volatile("" : : "r"(x) : "memory")

namespace shapes {
enum class kind : unsigned char { round = 1, square = 200 };
template <typename T, int N> struct array { T v[N]; };
struct tagged { long tag; };
struct named { char name[4]; long tag; };
struct abstract { virtual long area(long k) const = 0; long id; };
struct circle : abstract, tagged {
	static long count;
	unsigned r : 5;
	int neg : 7;
	unsigned long wide : 40;
	union { float f; unsigned bits; };
	kind k;
	array<int, 4> data;
	int circle::*member;
	long (circle::*method)(long);
	decltype(nullptr) nothing;
	noinline long area(long k) const override { KEEP(this); KEEP(k); return r * k; }
};
long circle::count = 3;
namespace { struct hidden { int a; }; }
struct hiding : named { long tag; };
struct far : virtual tagged { long own; };
}
using namespace shapes;
struct derived : tagged { double d; };
struct floating : array<float, 2> { float more; };
struct object { long a[3]; object(long v) : a{ v } {} object(const object &o) : a{ o.a[0] } {} ~object() { KEEP(a[0]); } };
struct small { char c; small(char v) : c(v) {} ~small() { KEEP(&c); } };
struct empty {};
struct wrapped { long double x; };
struct wide { __int128 w; long l; };
template <typename... A> struct pack { static noinline long middle(A... a, long last) { KEEP(last); return last; } };
template <typename... A> noinline long trailing(long first, A... a) { KEEP(first); return first; }

noinline long double returns_x87(long a, int b) { KEEP(a); KEEP(b); return a; }
noinline wrapped returns_wrapped(long a, int b) { KEEP(a); KEEP(b); return { 1 }; }
noinline _Complex long double returns_complex(long a, int b) { KEEP(a); KEEP(b); return a; }
noinline __float128 returns_quad(long a, int b) { KEEP(a); KEEP(b); return 1; }
noinline object returns_object(long a, int b) { KEEP(a); KEEP(b); return object(a); }
noinline small returns_small(long a, int b) { KEEP(a); KEEP(b); return small(1); }
noinline wide returns_wide(long a, int b) { KEEP(a); KEEP(b); return { 1, 2 }; }
noinline long takes_object(object o, long a) { KEEP(a); KEEP(&o); return a; }
noinline long takes_small(small s, long a) { KEEP(a); KEEP(&s); return a; }
noinline long takes_null(decltype(nullptr) n, long a) { KEEP(a); return a; }
noinline long takes_method(long (circle::*m)(long), long a) { KEEP(a); return a; }
noinline long takes_member(int circle::*m, long a) { KEEP(a); return a; }
noinline long takes_vector(v4si v, v2sf f, long a) { KEEP(a); return a + v[1]; }
noinline long takes_derived(derived d, long a) { KEEP(d.tag); KEEP(a); return a; }
noinline long takes_floating(floating f, long a) { KEEP(a); return a + f.more; }
noinline long takes_empty(empty e, long a) { KEEP(a); return a; }
noinline long takes_quad(__float128 q, long double x, long a) { KEEP(a); return a; }
noinline long takes_stack(long a, long b, long c, long d, long e, long f, long g, wide w, long h, long double x, char i)
{
	KEEP(a); KEEP(b); KEEP(c); KEEP(d); KEEP(e); KEEP(f); KEEP(g); KEEP(h); KEEP(i);
	return g + h + i + w.l;
}
noinline long takes_far(far *p, hiding *h, hidden *n) { KEEP(p); KEEP(h); KEEP(n); return p->own + h->tag + n->a; }

static circle round;
static far distant;
static circle *c = &round;
static far *d = &distant;
extern "C" void _start(void)
{
	for (long n = 0;; n++) {
		KEEP(returns_x87(n, 1) > 0); KEEP(returns_wrapped(n, 1).x > 0); KEEP(__real__ returns_complex(n, 1) > 0); returns_quad(n, 1);
		returns_object(n, 1); returns_small(n, 1); returns_wide(n, 1);
		takes_object(object(n), n); takes_small(small(1), n); takes_null(nullptr, n); takes_method(nullptr, n); takes_member(nullptr, n); takes_vector(v4si{}, v2sf{}, n); takes_derived(derived{}, n); takes_floating(floating{}, n); takes_empty(empty{}, n); takes_quad(0, n, n); takes_stack(1, 2, 3, 4, 5, 6, n, wide{}, 8, 9, 10); takes_far(d, (hiding *)c, (hidden *)c); c->area(n); pack<int, char>::middle(1, 2, n); trailing(n, 1, 2L);
	}
}
