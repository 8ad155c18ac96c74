package script

import "slices"

// builtin is a name that stands for a value.
type builtin struct {
	typ   Type
	where where
}

// where says in which probes a name means something.
type where uint8

const (
	anywhere where = iota
	atProbes       // kprobe and kretprobe
	atReturns
)

// builtins are those that there are; arguments and what depends on the probe is added by
// the checker.
var builtins = map[string]builtin{
	"pid": {typ: typeUintOf(4)}, "tid": {typ: typeUintOf(4)}, "uid": {typ: typeUintOf(4)}, "gid": {typ: typeUintOf(4)},
	"comm": {typ: typeString(16)}, "cpu": {typ: typeUintOf(4)}, "vcpu": {typ: typeUintOf(4)}, "ncpus": {typ: typeUint},
	"nsecs": {typ: typeUint}, "elapsed": {typ: typeUint}, "rand": {typ: typeUintOf(4)}, "curtask": {typ: typeUint}, "cgroup": {typ: typeUint},
	"usermode": {typ: typeUintOf(1)}, "probe": {typ: Type{Kind: String}}, "func": {typ: Type{Kind: String}, where: atProbes},
	"args":   {typ: Type{Kind: Void}, where: atProbes},
	"retval": {typ: typeUint, where: atReturns}, "kstack": {typ: Type{Kind: KStack, Size: 8, Depth: maxStack}},
	"arg0": {typ: typeUint, where: atProbes}, "arg1": {typ: typeUint, where: atProbes}, "arg2": {typ: typeUint, where: atProbes},
	"arg3": {typ: typeUint, where: atProbes}, "arg4": {typ: typeUint, where: atProbes}, "arg5": {typ: typeUint, where: atProbes},
	"arg6": {typ: typeUint, where: atProbes}, "arg7": {typ: typeUint, where: atProbes}, "arg8": {typ: typeUint, where: atProbes}, "arg9": {typ: typeUint, where: atProbes},
}

// maxStack is the most addresses of a stack, as of the helper's.
const maxStack = 127

// call is a function: how many arguments it takes, and what it is.
type call struct {
	least, most int // arguments
	statement   bool
}

// calls are the functions that there are.
var calls = map[string]call{
	"printf": {1, 64, true}, "print": {1, 3, true}, "clear": {1, 1, true}, "zero": {1, 1, true}, "exit": {0, 1, true},
	"delete": {1, 2, false}, "has_key": {1, 2, false},
	"len": {1, 1, false}, "str": {1, 2, false}, "buf": {2, 2, false}, "strlen": {1, 1, false}, "strerror": {1, 1, false}, "signal_name": {1, 1, false},
	"ksym": {1, 1, false}, "kaddr": {1, 1, false}, "reg": {1, 1, false}, "kstack": {0, 2, false}, "sizeof": {1, 1, false}, "offsetof": {2, 2, false}, "nsecs": {0, 1, false},
	"count": {0, 0, false}, "sum": {1, 1, false}, "avg": {1, 1, false}, "min": {1, 1, false}, "max": {1, 1, false}, "stats": {1, 1, false},
	"hist": {1, 2, false}, "lhist": {4, 4, false},
}

// aggregations are the functions whose values only maps have.
var aggregations = map[string]Kind{"count": Count, "sum": Sum, "avg": Avg, "min": Min, "max": Max, "stats": Stats, "hist": Hist, "lhist": LHist}

// absent says of bpftrace's names that are not here what to write instead, or "".
var absent = map[string]string{
	"ctx": "write reg(\"di\") and so on", "ustack": "write kstack, which is the stack of what was probed",
	"usym": "write ksym, which knows any symbol of the guest's image", "uaddr": "write kaddr, which knows any symbol of the guest's image",
	"quantize": "that is DTrace's name; write hist(n)", "lquantize": "that is DTrace's name; write lhist(n, min, max, step)",
	"tseries": "print and clear a count at an interval",
	"time":    "printf with elapsed / 1000000", "strftime": "printf with elapsed / 1000000", "join": "printf with str() of each",
	"system": "", "cat": "", "signal": "", "override": "", "kptr": "", "uptr": "", "macaddr": "", "ntop": "", "pton": "", "cgroupid": "", "cgroup_path": "",
	"strncmp": "== compares whole strings", "strcontains": "", "strstr": "", "strcap": "", "bswap": "", "skboutput": "", "unwatch": "", "path": "",
	"assert": "if (...) { printf(...); exit(1); }", "errorf": "printf", "warnf": "printf", "container_of": "",
	"jiffies": "write nsecs", "username": "write uid", "ppid": "", "pcomm": "", "probetype": "write probe", "numaid": "", "cr3": "", "vm": "", "gtsc": "write nsecs",
	"is_err": "(int64)retval < 0", "syscall_name": "", "socket_cookie": "", "memcmp": "", "stack_len": "", "getopt": "", "sarg0": "write arg6",
}

// unknown is the error for a name that there is not.
func (s *script) unknown(e *expr, what string) *Error {
	if hint, ok := absent[e.name]; ok {
		err := s.at(e.Span, "%s is not supported", e.name)
		if hint != "" {
			return err.hint("%s", hint)
		}
		return err
	}
	err := s.at(e.Span, "Unknown %s: '%s'", what, e.name)
	if m := meant(e.name, knownNames()); m != "" {
		return err.hint("did you mean %s?", m)
	}
	return err
}

// knownNames are all that a name may be.
func knownNames() (names []string) {
	for n := range builtins {
		names = append(names, n)
	}
	for n := range calls {
		names = append(names, n)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
