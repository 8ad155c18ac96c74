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
	"nsecs": {typ: typeUint}, "elapsed": {typ: typeUint}, "rand": {typ: typeUintOf(4)}, "curtask": {typ: typeUint}, "cgroup": {typ: typeUint}, "cr3": {typ: typeUint},
	"usermode": {typ: typeUintOf(1)}, "probe": {typ: Type{Kind: String}}, "probetype": {typ: Type{Kind: String}}, "jiffies": {typ: typeUint}, "numaid": {typ: typeUint}, "func": {typ: Type{Kind: String}, where: atProbes},
	"args":   {typ: Type{Kind: Void}, where: atProbes},
	"retval": {typ: typeUint, where: atReturns}, "kstack": {typ: Type{Kind: KStack}}, "ustack": {typ: Type{Kind: UStack}}, "dw_ustack": {typ: Type{Kind: UStack}},
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
	"printf": {1, 64, true}, "print": {1, 3, true}, "clear": {1, 1, true}, "zero": {1, 1, true}, "exit": {0, 1, true}, "override": {1, 1, true}, "setreg": {2, 2, true}, "poke": {2, 2, true}, "stop": {0, 1, true},
	"delete": {1, 2, false}, "has_key": {1, 2, false},
	"len": {1, 1, false}, "str": {1, 2, false}, "buf": {1, 2, false}, "strlen": {1, 1, false}, "strerror": {1, 1, false}, "signal_name": {1, 1, false},
	"ksym": {1, 1, false}, "kaddr": {1, 1, false}, "reg": {1, 1, false}, "kstack": {0, 3, false}, "ustack": {0, 3, false}, "dw_ustack": {0, 3, false}, "sizeof": {1, 1, false}, "offsetof": {2, 2, false}, "container_of": {3, 3, false}, "nsecs": {0, 1, false},
	"count": {0, 0, false}, "sum": {1, 1, false}, "avg": {1, 1, false}, "min": {1, 1, false}, "max": {1, 1, false}, "stats": {1, 1, false},
	"hist": {1, 2, false}, "lhist": {4, 4, false}, "tseries": {3, 4, false},
	"time": {0, 1, true}, "errorf": {1, 64, true}, "assert": {2, 2, true}, "warnf": {1, 64, true},
	"pid": {0, 1, false}, "tid": {0, 1, false}, "strftime": {2, 2, false}, "strncmp": {3, 3, false}, "memcmp": {3, 3, false},
	"strcontains": {2, 2, false}, "strstr": {2, 2, false}, "str_concat": {2, 2, false}, "strcap": {1, 1, false}, "bswap": {1, 1, false}, "ntop": {1, 2, false}, "macaddr": {1, 1, false},
	"usym": {1, 1, false}, "uaddr": {1, 1, false}, "kptr": {1, 1, false}, "uptr": {1, 1, false}, "is_err": {1, 1, false},
	"is_ptr": {1, 1, false}, "is_str": {1, 1, false}, "is_integer": {1, 1, false}, "is_unsigned_integer": {1, 1, false}, "is_literal": {1, 1, false}, "is_array": {1, 1, false},
	"ppid": {0, 1, false}, "pcomm": {0, 1, false}, "leader_tid": {0, 1, false}, "leader_comm": {0, 1, false},
}

// aggregations are the functions whose values only maps have.
var aggregations = map[string]Kind{"count": Count, "sum": Sum, "avg": Avg, "min": Min, "max": Max, "stats": Stats, "hist": Hist, "lhist": LHist, "tseries": TSeries}

// absent says of bpftrace's names that are not here, and of some of others', what to
// write instead.
var absent = map[string]string{
	"ctx":      "write reg(\"di\") and so on",
	"quantize": "that is DTrace's name; write hist(n)", "lquantize": "that is DTrace's name; write lhist(n, min, max, step)",
	"join":   "write printf with str() of each, as str(*(uint64 *)arg1) and str(*((uint64 *)arg1 + 1))",
	"system": "nothing is run for a script: have what reads its output run it", "cat": "nothing of the host is read for a script: have what reads its output do it",
	"signal": "send it in the guest, by guestprobe console", "signal_thread": "send it in the guest, by guestprobe console",
	"write_user": "write poke(ADDRESS, VALUE), with --unsafe", "skboutput": "write printf with buf() of the packet, as %rh", "unwatch": "a probe is there as long as its script: end it with exit()",
	"pton": "compare with the number, as 0x0100007f for 127.0.0.1", "cgroupid": "compare cgroup with the number, which ls -di says in the guest", "cgroup_path": "write cgroup",
	"path":     "write str() of the name that the dentry points to",
	"username": "write uid: names are in a file of the guest",
	"cpid":     "nothing is run for a script: write a condition with pid", "has_cpid": "nothing is run for a script", "vm": "a daemon has one guest",
	"gtsc": "write nsecs", "syscall_name": "print the number", "socket_cookie": "write the address of the socket", "stack_len": "write len", "getopt": "write $1",
	"sarg0": "write arg6", "percpu_kaddr": "write kaddr, and add the vCPU's offset", "find": "write has_key(@m, KEY), and then @m[KEY]",
	"static_assert": "the compiler checks types by itself", "fail": "write errorf and exit", "typeinfo": "write the type",
	"kfunc_exist": "programs call nothing of the guest's kernel", "kfunc_allowed": "programs call nothing of the guest's kernel", "config": "what is set stands in the script",
	"default_str_length": "write max_strlen's number", "assert_str": "the compiler checks types by itself",
}

// unknown is the error for a name that there is not.
func (s *script) unknown(e *expr, what string) *Error {
	if hint, ok := absent[e.name]; ok {
		return s.at(e.Span, "%s is not supported", e.name).hint("%s", hint)
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
