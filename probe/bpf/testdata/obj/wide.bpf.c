// Enumerations of 8 bytes, of which BTF has half of each value where the compiler knows no BTF_KIND_ENUM64, and
// floating-point numbers.
#include "../../../../docs/examples/guestprobe.h"

enum big { SMALL = 1, BIG = 0x100000001ULL, ALL = 0xffffffffffffffffULL };
enum with_sign { NEGATIVE = -5, POSITIVE = 0x200000002LL };
enum word { MINUS = -1, SEVEN = 7 };

struct value {
	enum big big[4];
	enum with_sign with_sign[3];
	enum word word;
	float f;
	double d;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct value);
} values SEC(".maps");

SEC("kprobe/vfs_read")
int put(struct pt_regs *ctx)
{
	u32 zero = 0;
	struct value *v = bpf_map_lookup_elem(&values, &zero);
	if (v)
		v->big[0] = BIG;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
