/*
 * What the compiler may call by itself (memcpy, memset), and small strings.
 * The string instructions cost one emulated instruction each where CPL0 is
 * emulated, however long they run.
 */
#include "kernel.h"

void *memcpy(void *dst, const void *src, u64 n)
{
	void *ret = dst;

	__asm__ volatile("rep movsb"
			 : "+D"(dst), "+S"(src), "+c"(n)
			 :
			 : "memory");
	return ret;
}

void *memset(void *dst, int c, u64 n)
{
	void *ret = dst;

	__asm__ volatile("rep stosb"
			 : "+D"(dst), "+c"(n)
			 : "a"(c)
			 : "memory");
	return ret;
}

bool str_eq(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* Copies at most size - 1 bytes and pads with NULs. */
void str_copy(char *dst, const char *src, u64 size)
{
	u64 i = 0;

	for (; i + 1 < size && src[i]; i++)
		dst[i] = src[i];
	memset(dst + i, 0, size - i);
}
