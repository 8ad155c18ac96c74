/* What GDB's test programs call of a C library. They are looked at by a debugger and print for nobody. */
typedef unsigned long size;

void *stdin, *stdout, *stderr;

int printf(const char *f, ...) { return 0; }
int fprintf(void *to, const char *f, ...) { return 0; }
int puts(const char *s) { return 0; }
int putchar(int c) { return c; }
int fflush(void *f) { return 0; }
int fileno(void *f) { return 1; }
int setvbuf(void *f, char *b, int mode, size n) { return 0; }
long write(int fd, const void *b, size n) { return n; }
int getpid(void) { return 1; }
unsigned sleep(unsigned n) { return 0; }
int usleep(unsigned n) { return 0; }
unsigned alarm(unsigned n) { return 0; }

void exit(int status)
{
	for (;;)
		__asm__ volatile("out %0, $0xf4" : : "a"(status)); /* guest.PortExit */
}
void abort(void) { exit(1); }

static char heap[1 << 16];
static size used;

void *malloc(size n)
{
	n = (n + 15) & ~15ul;
	if (n > sizeof heap - used)
		return 0;
	used += n;
	return heap + used - n;
}
void free(void *p) {}

void *memset(void *to, int c, size n)
{
	for (char *p = to; n--;)
		*p++ = c;
	return to;
}
void *memcpy(void *to, const void *from, size n)
{
	const char *q = from;
	for (char *p = to; n--;)
		*p++ = *q++;
	return to;
}
int memcmp(const void *a, const void *b, size n)
{
	const unsigned char *p = a, *q = b;
	for (; n--; p++, q++)
		if (*p != *q)
			return *p - *q;
	return 0;
}
size strlen(const char *s)
{
	size n = 0;
	while (s[n])
		n++;
	return n;
}
char *strcpy(char *to, const char *s)
{
	return memcpy(to, s, strlen(s) + 1);
}
int strcmp(const char *a, const char *b)
{
	for (; *a && *a == *b; a++, b++)
		;
	return *(unsigned char *)a - *(unsigned char *)b;
}
long strtol(const char *s, char **end, int base)
{
	long n = 0;
	for (; *s >= '0' && *s <= '9'; s++)
		n = 10 * n + *s - '0';
	if (end)
		*end = (char *)s;
	return n;
}
int atoi(const char *s) { return strtol(s, 0, 10); }
