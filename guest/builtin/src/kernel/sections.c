/*
 * Functions that must be refused as probepoints, each for its own reason: its
 * section, or an entry of _kprobe_blacklist.
 */
#include "kernel.h"
#include "sections.h"

SECTION(".kprobes.text") PROBED u64 kprobes_text_fn(u64 a)
{
	return a + 1;
}

SECTION(".noinstr.text") PROBED u64 noinstr_text_fn(u64 a)
{
	return a + 2;
}

SECTION(".entry.text") PROBED u64 entry_text_fn(u64 a)
{
	return a + 3;
}

PROBED u64 blacklisted_fn(u64 a)
{
	return a + 4;
}
NOKPROBE_SYMBOL(blacklisted_fn);
