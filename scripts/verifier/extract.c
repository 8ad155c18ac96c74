// Writes the cases of Linux's test_verifier as lines: what they are called, what Linux says of them, and the program with its maps.
// tests.inc is the part of test_verifier.c that they need, from its limits to its table; see scripts/verifier-suite.sh.
#include <linux/types.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stddef.h>
#include <stdbool.h>
#include <limits.h>
#include <errno.h>
#include <assert.h>
#include <linux/filter.h>
#include <linux/bpf_perf_event.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/btf.h>
#define ENOTSUPP 524
#define offsetofend(type, member) (offsetof(type, member) + sizeof(((type *)0)->member))
#include "bpf_rand.h"
#include "test_btf.h"
#include "../../../include/linux/filter.h"

#include "tests.inc"

static struct bpf_test tests[] = {
#include "cases.inc"
};

static void text(const char *s)
{
	for (s = s ? s : ""; *s; s++)
		putchar(*s == '\t' || *s == '\n' ? ' ' : *s);
}

static const char *maps;
static void fix(const char *kind, const int *at)
{
	for (int k = 0; k < MAX_FIXUPS && at[k]; k++)
		printf("%s%d=%s", k || maps ? "," : "", at[k], kind), maps = kind;
}

int main(void)
{
	static struct bpf_insn room[MAX_TEST_INSNS];
	for (size_t n = 0; n < sizeof tests / sizeof *tests; n++) {
		struct bpf_test *t = tests + n;
		struct bpf_insn *insns = t->insns;
		int len = 0;
		if (t->fill_helper) {
			memset(room, 0, sizeof room);
			t->fill_insns = room;
			t->fill_helper(t);
			insns = room;
			len = t->prog_len;
		} else {
			for (len = MAX_INSNS - 1; len > 0 && !insns[len].code && !insns[len].imm; len--)
				;
			len++;
		}
		text(t->descr);
		printf("\t%s\t%d\t%d\t", t->result == ACCEPT ? "accept" : t->result == REJECT ? "reject" : "verbose", t->prog_type, t->flags);
		text(t->errstr);
		putchar('\t');
		maps = NULL;
#define FIX(kind) fix(#kind, t->fixup_##kind)
		FIX(map_hash_8b); FIX(map_hash_48b); FIX(map_hash_16b); FIX(map_array_48b); FIX(map_sockmap); FIX(map_sockhash); FIX(map_xskmap); FIX(map_stacktrace);
		FIX(prog1); FIX(prog2); FIX(map_in_map); FIX(cgroup_storage); FIX(percpu_cgroup_storage); FIX(map_spin_lock); FIX(map_array_ro); FIX(map_array_wo);
		FIX(map_array_small); FIX(sk_storage_map); FIX(map_event_output); FIX(map_reuseport_array); FIX(map_ringbuf); FIX(map_timer); FIX(map_kptr);
		for (int k = 0; k < MAX_FIXUPS && t->fixup_kfunc_btf_id[k].kfunc; k++)
			printf("%s%d=kfunc", maps ? "," : "", t->fixup_kfunc_btf_id[k].insn_idx), maps = "kfunc";
		putchar('\t');
		for (int k = 0; k < len; k++)
			for (size_t b = 0; b < sizeof *insns; b++)
				printf("%02x", ((unsigned char *)(insns + k))[b]);
		putchar('\n');
	}
	return 0;
}
