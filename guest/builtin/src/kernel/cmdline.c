/*
 * The command line: words separated by blanks. Unknown words are ignored, as
 * another guest's options may be among them.
 */
#include "kernel.h"

#define WORD_MAX 32

static u64 parse_u64(const char *s)
{
	u64 v = 0;

	while (*s >= '0' && *s <= '9')
		v = v * 10 + (u64)(*s++ - '0');
	return v;
}

/* Returns what follows prefix in word, or NULL. */
static const char *after(const char *word, const char *prefix)
{
	while (*prefix)
		if (*word++ != *prefix++)
			return NULL;
	return word;
}

static void parse_word(const char *word)
{
	const char *v;

	if ((v = after(word, "rounds="))) {
		options.rounds = parse_u64(v);
		options.busy = true;
	} else if ((v = after(word, "crash=")))
		str_copy(options.crash, v, sizeof(options.crash));
	else if (str_eq(word, "quiet"))
		options.quiet = true;
	else if (str_eq(word, "nouser"))
		options.nouser = true;
	else if (str_eq(word, "idle"))
		options.idle = true;
	else if (str_eq(word, "bench"))
		options.bench = true;
	else if (str_eq(word, "busy"))
		options.busy = true;
	else if (str_eq(word, "int3"))
		options.int3 = true;
	else if (str_eq(word, "alias"))
		options.alias = true;
}

void parse_cmdline(const char *s, u64 len)
{
	char word[WORD_MAX];
	u64 i, n = 0;

	for (i = 0; i <= len; i++) {
		char c = i < len ? s[i] : 0;

		if (c && c != ' ' && c != '\t' && c != '\n') {
			if (n < WORD_MAX - 1)
				word[n++] = c;
			continue;
		}
		word[n] = 0;
		if (n)
			parse_word(word);
		n = 0;
		if (!c)
			break;
	}
}
