/*
 * The console: whole lines under one lock, so that vCPUs do not mix theirs.
 */
#include <stdarg.h>

#include "kernel.h"

#define LINE_MAX 160

static struct spinlock console_lock;
static bool panicking;

struct line {
	u32 n;
	char text[LINE_MAX];
};

static void put(struct line *l, char c)
{
	if (l->n < LINE_MAX)
		l->text[l->n++] = c;
}

static void put_number(struct line *l, u64 v, u32 base, u32 width)
{
	char digits[20];
	u32 n = 0;

	do {
		digits[n++] = "0123456789abcdef"[v % base];
		v /= base;
	} while (v);
	while (width > n)
		put(l, '0'), width--;
	while (n)
		put(l, digits[--n]);
}

static void write_line(const struct line *l)
{
	u64 flags = 0;
	u32 i;

	/* A panic may come while this vCPU holds the lock. */
	if (!panicking)
		flags = spin_lock_irqsave(&console_lock);
	for (i = 0; i < l->n; i++)
		outb((u8)l->text[i], PORT_CONSOLE);
	if (!panicking)
		spin_unlock_irqrestore(&console_lock, flags);
}

void console_panic_mode(void)
{
	panicking = true;
}

/* %s %c %d %u %x with l, and a zero-padded width: %016lx. */
PROBED void kprintf(const char *fmt, ...)
{
	struct line l;
	va_list ap;

	l.n = 0;
	va_start(ap, fmt);
	for (; *fmt; fmt++) {
		u32 width = 0;
		bool wide = false;
		u64 v;

		if (*fmt != '%') {
			put(&l, *fmt);
			continue;
		}
		for (fmt++; *fmt >= '0' && *fmt <= '9'; fmt++)
			width = width * 10 + (u32)(*fmt - '0');
		if (*fmt == 'l')
			wide = true, fmt++;
		if (*fmt == 's') {
			const char *s = va_arg(ap, const char *);

			while (*s)
				put(&l, *s++);
			continue;
		}
		if (*fmt == 'c') {
			put(&l, (char)va_arg(ap, int));
			continue;
		}
		v = wide ? va_arg(ap, u64) : va_arg(ap, u32);
		if (*fmt == 'd') {
			s64 sv = wide ? (s64)v : (s64)(s32)v;

			if (sv < 0)
				put(&l, '-'), sv = -sv;
			v = (u64)sv;
		}
		put_number(&l, v, *fmt == 'x' ? 16 : 10, width);
	}
	va_end(ap);
	write_line(&l);
}
