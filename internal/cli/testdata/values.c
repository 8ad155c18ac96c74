/* Values of all types, for comparison with what GDB makes of them. */
void _start(void) { for (;;) __asm__ volatile("pause"); }

typedef unsigned char u8;
typedef unsigned long long u64;
enum colour { RED = -1, GREEN = 1, BLUE = 0x7fffffff };
union either { float f; unsigned int bits; unsigned char bytes[4]; };
struct inner { double d; float f[3]; short s; };
struct node {
	struct node *next;
	struct inner in[2];
	union either either;
	enum colour colour;
	_Bool yes;
	char name[12];
	unsigned long low : 3, mid : 41, high : 20;
	int neg : 5;
	long double ld;
	__int128 wide;
	unsigned __int128 wides[2];
	const char *text;
	void (*call)(void);
	int grid[2][3];
	struct { int hidden; union { long either_long; u8 raw[8]; }; };
	struct node **list;
	long after[];
} __attribute__((aligned(16)));

struct node second;
struct node *nodes[3] = { 0, &second, 0 };
struct node first = {
	.next = &second, .in = { { 1.0 / 3, { 0.1f, -1e-45f, 3e38f }, -7 }, { -5e-324, { 1, 2, 3 }, 32767 } }, .either.f = -0.0f, .colour = GREEN, .yes = 1,
	.name = "hello\tyou", .low = 5, .mid = 0x1ffffffffffUL, .high = 0xabcde, .neg = -3, .ld = 0.1L, .wide = -((__int128)1 << 100), .wides = { ~(unsigned __int128)0, 42 },
	.text = "text", .call = _start, .grid = { { 1, 2, 3 }, { 4, 5, -6 } }, .hidden = 99, .raw = { 1, 2, 3, 4, 5, 6, 7, 0x88 }, .list = nodes,
};
struct node second = { .next = &first, .in = { { 1e300, { __builtin_inff(), -__builtin_inff(), __builtin_nanf("0x1234") }, 1 } }, .colour = RED, .name = "second", .ld = -1e4000L, .wide = 7 };

float f = 16777217.0f, fs[2] = { 1e10f, -2.5f };
double d = 123456.789, ds[4] = { 9007199254740993.0, 5e-324, 1.7976931348623157e308, -0.0 };
long double ld = 3.14159265358979323846264338327950288L, lds[2] = { 1.18973149535723176502e+4932L, 3.4e-4932L };
__int128 wide = -1;
unsigned __int128 uwide = (unsigned __int128)0xfedcba9876543210 << 64 | 0x123456789abcdef;
long l = -1234567890123;
unsigned int ui = 4000000000u;
signed char sc = -128;
u8 byte = 255;
u64 large = 1;
short sh = -32768;
struct pair { double _Complex both; float _Complex small; } pair = { 1.5 - 2.25i, 0.1f + 3e10fi };
