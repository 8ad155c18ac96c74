/* What a kernel's loader would fill in, and nobody does here. */
#include "../../../../docs/examples/guestprobe.h"

extern unsigned CONFIG_HZ __attribute__((section(".kconfig")));
extern unsigned CONFIG_WEAK __attribute__((section(".kconfig"), weak));

SEC("kprobe/vfs_read")
int hz(struct pt_regs *ctx)
{
	return CONFIG_HZ == 1000 && CONFIG_WEAK;
}
