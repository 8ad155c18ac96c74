/* Reporting what a self-check found. */
#include "selfcheck.h"
#include "kernel.h"

u64 selfcheck_failures;

void selfcheck_fail(u32 code, u64 got, u64 want)
{
	atomic_add_return(&selfcheck_failures, 1);
	outl(code, PORT_REPORT);
	kprintf("selfcheck %08x failed on cpu %u: got %lx, want %lx\n", code,
		this_cpu(), got, want);
}
