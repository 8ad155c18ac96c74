/*
 * The call service: runs guest functions that the host asks for, with
 * interrupts on. Each call is a task of its own on vCPU 0, so that neither a
 * fault nor a function that does not return ends the service with it.
 */
#include "kernel.h"

struct call_mailbox gp_call_mailbox = { .magic = CALL_MAGIC };

/* The result of the call that runs now. */
static u64 call_ret, call_fault;

static u64 call_task(u64 unused)
{
	u64 args[6], ret, i;

	(void)unused;
	for (i = 0; i < 6; i++)
		args[i] = gp_call_mailbox.args[i];
	ret = call_protected(gp_call_mailbox.fn, args, &current->recover_sp);
	call_ret = ret;
	if (call_fault == CALL_EXITED)
		call_fault = 0;
	return 0;
}

/* From exc_dispatch: the function that current calls has faulted. */
void NORETURN call_abort(u64 vector)
{
	call_fault = CALL_FAULT | vector;
	call_fault_exit(current->recover_sp);
}

void call_service(u64 unused)
{
	volatile struct call_mailbox *m = &gp_call_mailbox;

	(void)unused;
	for (;;) {
		u64 request = m->request;
		struct task *t;
		long code;

		if (request == m->done) {
			schedule_ticks(1);
			continue;
		}
		/* Until call_task says otherwise, the function has not returned. */
		call_ret = ~0ul;
		call_fault = CALL_EXITED;
		t = task_create(0, (u64)call_task, 0, "gp_call/fn");
		if (!t) {
			schedule_ticks(1);
			continue;
		}
		code = do_wait(t->pid);
		m->ret = call_fault == CALL_EXITED ? (u64)code : call_ret;
		m->fault = call_fault;
		barrier();
		m->done = request;
	}
}
