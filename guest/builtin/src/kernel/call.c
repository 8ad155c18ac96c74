/*
 * The call service: runs guest functions that the host asks for, in a kernel
 * task of vCPU 0, with interrupts on. A fault ends the call, not the guest.
 */
#include "kernel.h"

struct call_mailbox gp_call_mailbox = { .magic = CALL_MAGIC };

void call_service(u64 unused)
{
	volatile struct call_mailbox *m = &gp_call_mailbox;
	struct task *t = current;

	(void)unused;
	for (;;) {
		u64 args[6], i, request = m->request;

		if (request == m->done) {
			schedule_ticks(1);
			continue;
		}
		for (i = 0; i < 6; i++)
			args[i] = m->args[i];
		t->exit_code = 0;
		m->ret = call_protected(m->fn, args, &t->recover_sp);
		m->fault = (u64)t->exit_code;
		m->done = request;
	}
}
