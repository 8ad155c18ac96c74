package jail

import "golang.org/x/sys/unix"

// masked is a set of values: those that are value under mask. Only the lower half of a system call's argument is looked at,
// which is all that the kernel uses of those that rules are about.
type masked struct{ mask, value uint32 }

// exactly is the one value.
func exactly(v uint32) masked { return masked{^uint32(0), v} }

// without is all values that have none of these bits.
func without(bits uint32) masked { return masked{bits, 0} }

// rule says what of a system call is allowed.
type rule struct {
	nr     uint32
	arg    int        // number of the argument that is looked at
	refuse []masked   // these values are not allowed
	allow  []masked   // of the others these are; none given: all
	errno  unix.Errno // what a refusal is; 0: EPERM
	never  bool       // it is refused whatever its arguments are
	// With these values of the argument another one decides, after allow.
	when []masked
	then *rule // its arg and allow
}

// call is a system call that is allowed.
func call(nr uint32) rule { return rule{nr: nr} }

// Of struct seccomp_data (linux/seccomp.h).
const (
	offsetNr   = 0
	offsetArch = 4
	offsetArgs = 16
)

// x32 is set in the numbers of system calls of a third ABI that no program of ours uses (asm/unistd.h).
const x32 = 0x40000000

// The instructions that are used (linux/filter.h; linux/bpf_common.h).
const (
	opLoad  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opAnd   = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opAbove = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	opRet   = unix.BPF_RET | unix.BPF_K
)

func op(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

// unless skips n instructions where what stands in the accumulator is not k.
func unless(k uint32, n int) unix.SockFilter {
	return unix.SockFilter{Code: opEqual, Jf: uint8(n), K: k}
}

// refusal answers with an error. The kernel's log has a line of it (SECCOMP_FILTER_FLAG_LOG).
func refusal(e unix.Errno) unix.SockFilter {
	if e == 0 {
		e = unix.EPERM
	}
	return op(opRet, unix.SECCOMP_RET_ERRNO|uint32(e))
}

var allowed = op(opRet, unix.SECCOMP_RET_ALLOW)

// assemble makes a program for the kernel: what rules do not name is refused with EPERM. Rules are looked through in their order,
// so that those whose arguments are looked at at each call stand in front: for all others the kernel remembers the answer (Linux
// 5.11, kernel/seccomp.c, seccomp_cache_check_allow).
func assemble(rules []rule) []unix.SockFilter {
	p := []unix.SockFilter{
		op(opLoad, offsetArch),
		{Code: opEqual, Jt: 1, K: unix.AUDIT_ARCH_X86_64},
		refusal(0),
		op(opLoad, offsetNr),
		{Code: opAbove, Jf: 1, K: x32},
		refusal(0),
	}
	for _, r := range rules {
		b := r.body()
		p = append(append(p, unless(r.nr, len(b))), b...)
	}
	return append(p, refusal(0))
}

// body is what a rule does with its system call. It always returns.
func (r rule) body() (p []unix.SockFilter) {
	if r.never {
		return []unix.SockFilter{refusal(r.errno)}
	}
	check := func(m masked, ret unix.SockFilter) {
		p = append(p, op(opLoad, offsetArgs+8*uint32(r.arg)))
		if m.mask != ^uint32(0) {
			p = append(p, op(opAnd, m.mask))
		}
		p = append(p, unless(m.value, 1), ret)
	}
	for _, m := range r.refuse {
		check(m, refusal(r.errno))
	}
	if len(r.allow) == 0 {
		return append(p, allowed)
	}
	for _, m := range r.allow {
		check(m, allowed)
	}
	for _, m := range r.when {
		second := (&rule{arg: r.then.arg, allow: r.then.allow, errno: r.errno}).body()
		p = append(p, op(opLoad, offsetArgs+8*uint32(r.arg)))
		if m.mask != ^uint32(0) {
			p = append(p, op(opAnd, m.mask))
		}
		p = append(append(p, unless(m.value, len(second))), second...)
	}
	return append(p, refusal(r.errno))
}
