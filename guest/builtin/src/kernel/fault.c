/*
 * The exception table: where to continue when an instruction that may fault
 * does.
 */
#include "kernel.h"

struct extable_entry {
	u64 insn, fixup;
};

extern const struct extable_entry ex_table_start[], ex_table_end[];

PROBED bool fixup_exception(struct trap_frame *f)
{
	const struct extable_entry *e;

	for (e = ex_table_start; e < ex_table_end; e++) {
		if (e->insn == f->rip) {
			f->rip = e->fixup;
			return true;
		}
	}
	return false;
}
