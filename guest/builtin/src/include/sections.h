#ifndef GP_SECTIONS_H
#define GP_SECTIONS_H

#include "types.h"

/* kernel/sections.c: a plus 1, 2, 3, 4. */
u64 kprobes_text_fn(u64 a);
u64 noinstr_text_fn(u64 a);
u64 entry_text_fn(u64 a);
u64 blacklisted_fn(u64 a);

#endif
