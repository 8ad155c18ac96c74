package script

import "slices"

// builtin is a name with a value.
type builtin struct {
	typ   Type
	where where
}

// where is the set of probes in which a name is valid.
type where uint8

const (
	anywhere where = iota
	atProbes       // kprobe and kretprobe
	atReturns
)

// builtins are the supported names; the checker adds arguments and names that depend
// on the probe.
var builtins = map[string]builtin{
	"pid": {typ: typeUintOf(4)}, "tid": {typ: typeUintOf(4)}, "uid": {typ: typeUintOf(4)}, "gid": {typ: typeUintOf(4)},
	"comm": {typ: typeString(16)}, "cpu": {typ: typeUintOf(4)}, "vcpu": {typ: typeUintOf(4)}, "ncpus": {typ: typeUint},
	"nsecs": {typ: typeUint}, "elapsed": {typ: typeUint}, "rand": {typ: typeUintOf(4)}, "curtask": {typ: typeUint}, "cgroup": {typ: typeUint}, "cr3": {typ: typeUint},
	"usermode": {typ: typeUintOf(1)}, "probe": {typ: Type{Kind: String}}, "probetype": {typ: Type{Kind: String}}, "jiffies": {typ: typeUint}, "numaid": {typ: typeUint}, "func": {typ: Type{Kind: String}, where: atProbes},
	"config": {typ: Type{Kind: Tuple}}, "default_str_length": {typ: typeInt},
	"args":   {typ: Type{Kind: Void}, where: atProbes},
	"retval": {typ: typeUint, where: atReturns}, "kstack": {typ: Type{Kind: KStack}}, "ustack": {typ: Type{Kind: UStack}}, "dw_ustack": {typ: Type{Kind: UStack}},
	"arg0": {typ: typeUint, where: atProbes}, "arg1": {typ: typeUint, where: atProbes}, "arg2": {typ: typeUint, where: atProbes},
	"arg3": {typ: typeUint, where: atProbes}, "arg4": {typ: typeUint, where: atProbes}, "arg5": {typ: typeUint, where: atProbes},
	"arg6": {typ: typeUint, where: atProbes}, "arg7": {typ: typeUint, where: atProbes}, "arg8": {typ: typeUint, where: atProbes}, "arg9": {typ: typeUint, where: atProbes},
	"arg10": {typ: typeUint, where: atProbes}, "arg11": {typ: typeUint, where: atProbes},
}

// maxStack is the most addresses of a stack, the helper's limit.
const maxStack = 127

// call is a function: the number of its arguments, and its kind.
type call struct {
	least, most int // arguments
	statement   bool
}

// calls are the supported functions.
var calls = map[string]call{
	"printf": {1, 64, true}, "print": {1, 3, true}, "clear": {1, 1, true}, "zero": {1, 1, true}, "exit": {0, 1, true}, "override": {1, 1, true}, "setreg": {2, 2, true}, "poke": {2, 2, true}, "stop": {0, 1, true},
	"delete": {1, 2, false}, "has_key": {1, 2, false}, "find": {2, 3, false}, "pton": {1, 1, false}, "is_scalar": {1, 1, false}, "debugf": {1, 64, true},
	"len": {1, 1, false}, "stack_len": {1, 1, false}, "str": {1, 2, false}, "buf": {1, 2, false}, "strlen": {1, 1, false}, "strerror": {1, 1, false}, "signal_name": {1, 1, false}, "syscall_name": {1, 1, false},
	"ksym": {1, 1, false}, "kaddr": {1, 1, false}, "reg": {1, 1, false}, "kstack": {0, 3, false}, "ustack": {0, 3, false}, "dw_ustack": {0, 3, false}, "sizeof": {1, 1, false}, "typeinfo": {1, 1, false}, "offsetof": {2, 2, false}, "container_of": {3, 3, false}, "nsecs": {0, 1, false},
	"count": {0, 0, false}, "sum": {1, 1, false}, "avg": {1, 1, false}, "min": {1, 1, false}, "max": {1, 1, false}, "stats": {1, 1, false},
	"hist": {1, 2, false}, "lhist": {4, 4, false}, "tseries": {3, 4, false},
	"time": {0, 1, true}, "errorf": {1, 64, true}, "assert": {2, 2, true}, "fail": {1, 64, true}, "static_assert": {2, 2, true}, "assert_str": {1, 1, true}, "warnf": {1, 64, true},
	"pid": {0, 1, false}, "tid": {0, 1, false}, "strftime": {2, 2, false}, "strncmp": {3, 3, false}, "memcmp": {3, 3, false},
	"strcontains": {2, 2, false}, "strstr": {2, 2, false}, "str_concat": {2, 2, false}, "strcap": {1, 1, false}, "bswap": {1, 1, false}, "ntop": {1, 2, false}, "macaddr": {1, 1, false},
	"usym": {1, 1, false}, "uaddr": {1, 1, false}, "kptr": {1, 1, false}, "uptr": {1, 1, false}, "is_err": {1, 1, false},
	"is_ptr": {1, 1, false}, "is_str": {1, 1, false}, "is_integer": {1, 1, false}, "is_unsigned_integer": {1, 1, false}, "is_literal": {1, 1, false}, "is_array": {1, 1, false},
	"ppid": {0, 1, false}, "pcomm": {0, 1, false}, "leader_tid": {0, 1, false}, "leader_comm": {0, 1, false},
}

// aggregations are the functions whose values only maps can have.
var aggregations = map[string]Kind{"count": Count, "sum": Sum, "avg": Avg, "min": Min, "max": Max, "stats": Stats, "hist": Hist, "lhist": LHist, "tseries": TSeries}

// absent has suggestions for names of bpftrace, and some others, that are not
// supported.
var absent = map[string]string{
	"ctx":      "write reg(\"di\") and so on",
	"quantize": "that is DTrace's name; write hist(n)", "lquantize": "that is DTrace's name; write lhist(n, min, max, step)",
	"system": "scripts cannot run commands: pipe the output to a program that does", "cat": "scripts cannot read files of the host: pipe the output to a program that does",
	"signal": "send it in the guest, by guestprobe console", "signal_thread": "send it in the guest, by guestprobe console",
	"write_user": "write poke(ADDRESS, VALUE), with --unsafe", "skboutput": "write printf with buf() of the packet, as %rh", "unwatch": "a probe is there as long as its script: end it with exit()",
	"cgroupid": "compare cgroup with the number, which ls -di says in the guest", "cgroup_path": "write cgroup",
	"path":     "write str() of the name that the dentry points to",
	"username": "write uid: names are in a file of the guest",
	"cpid":     "nothing is run for a script: write a condition with pid", "has_cpid": "nothing is run for a script", "vm": "a daemon has one guest",
	"gtsc": "write nsecs", "socket_cookie": "write the address of the socket",
	"sarg0": "write arg6", "percpu_kaddr": "write kaddr, and add the vCPU's offset",

	"kfunc_exist": "programs call nothing of the guest's kernel", "kfunc_allowed": "programs call nothing of the guest's kernel",
}

// unknownError is the error for an unknown name.
func (s *script) unknownError(e *expr, what string) *Error {
	if hint, ok := absent[e.name]; ok {
		return s.errorAt(e.Span, "%s is not supported", e.name).hint("%s", hint)
	}
	err := s.errorAt(e.Span, "Unknown %s: '%s'", what, e.name)
	if m := nearestName(e.name, knownNames()); m != "" {
		return err.hint("did you mean %s?", m)
	}
	return err
}

// isKnownName reports whether a name is a builtin or a function.
func isKnownName(name string) bool {
	_, isName := builtins[name]
	_, isCall := calls[name]
	return isName || isCall || members[name] != nil
}

// knownNames returns all valid names.
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
