enum color { RED = 1, GREEN, BLUE = -7 };
struct item { struct item *next; long weight; enum color color; char label[16]; };
struct list { struct item *head; long count; struct { int a, b, c, d; } quad; union { unsigned long whole; unsigned char bytes[8]; }; unsigned low : 3; int high : 5; long (*visit)(struct item *, int); };
static inline __attribute__((always_inline)) long heavy(struct list *l, long factor)
{
	long sum = 0;
	struct item *i;
	for (i = l->head; i; i = i->next) {
		sum += i->weight * factor;
		__asm__ volatile("" : "+r"(sum));
	}
	return sum;
}
