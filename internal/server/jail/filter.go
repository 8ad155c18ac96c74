package jail

import "golang.org/x/sys/unix"

// masked is the set of values that equal value under mask. Only the lower half
// of a system call's argument is compared. The kernel uses no more of the
// arguments in rules.
type masked struct{ mask, value uint32 }

// exactValue is the one value.
func exactValue(v uint32) masked { return masked{^uint32(0), v} }

// valuesWithout is all values without these bits.
func valuesWithout(bits uint32) masked { return masked{bits, 0} }

// rule says which uses of a system call are allowed.
type rule struct {
	nr     uint32
	arg    int        // number of the compared argument
	refuse []masked   // these values are not allowed
	allow  []masked   // allowed values of the argument otherwise; empty: all
	errno  unix.Errno // the error of a denied call; 0: EPERM
	never  bool       // it is denied whatever its arguments are
	// With these values of the argument another rule decides, after allow.
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

// The instructions in use (linux/filter.h; linux/bpf_common.h).
const (
	opLoad  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	opAnd   = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	opEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	opAbove = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	opRet   = unix.BPF_RET | unix.BPF_K
)

func op(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

// jumpUnless skips n instructions if the accumulator is not k.
func jumpUnless(k uint32, n int) unix.SockFilter {
	return unix.SockFilter{Code: opEqual, Jf: uint8(n), K: k}
}

// refusal returns an error from the system call. The kernel logs a line about it
// (SECCOMP_FILTER_FLAG_LOG).
func refusal(e unix.Errno) unix.SockFilter {
	if e == 0 {
		e = unix.EPERM
	}
	return op(opRet, unix.SECCOMP_RET_ERRNO|uint32(e))
}

var allowed = op(opRet, unix.SECCOMP_RET_ALLOW)

// assemble makes a program for the kernel. System calls without a rule fail with
// EPERM. Rules are tried in order. Rules that compare arguments come first,
// because they are evaluated at each call: for all others the kernel caches the
// answer (Linux 5.11, kernel/seccomp.c, seccomp_cache_check_allow).
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
		p = append(append(p, jumpUnless(r.nr, len(b))), b...)
	}
	return append(p, refusal(0))
}

// body is a rule's code for its system call. It always returns.
func (r rule) body() (p []unix.SockFilter) {
	if r.never {
		return []unix.SockFilter{refusal(r.errno)}
	}
	check := func(m masked, ret unix.SockFilter) {
		p = append(p, op(opLoad, offsetArgs+8*uint32(r.arg)))
		if m.mask != ^uint32(0) {
			p = append(p, op(opAnd, m.mask))
		}
		p = append(p, jumpUnless(m.value, 1), ret)
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
		p = append(append(p, jumpUnless(m.value, len(second))), second...)
	}
	return append(p, refusal(r.errno))
}
