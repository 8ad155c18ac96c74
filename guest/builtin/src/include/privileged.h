#ifndef GP_PRIVILEGED_H
#define GP_PRIVILEGED_H

#include "types.h"

/* kernel/privileged.S */
u64 cli_sti(u64 a);           /* 0x400 */
u64 iretq_here(u64 a);        /* a + 0x10 */
u64 far_return(u64 a);        /* a + 0x20 */
u64 control_registers(u64 a); /* a */
u64 own_int3(u64 a);          /* a + 3 */

#endif
