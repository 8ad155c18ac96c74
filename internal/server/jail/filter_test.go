package jail

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// verdict runs a program of assemble as the kernel would (Documentation/networking/filter.rst), on the instructions that it uses.
func verdict(t *testing.T, p []unix.SockFilter, arch, nr uint32, args [6]uint64) string {
	t.Helper()
	var a uint32
	for pc := 0; pc < len(p); pc++ {
		in := p[pc]
		jump := func(yes bool) {
			if yes {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Code {
		case opLoad:
			switch {
			case in.K == offsetNr:
				a = nr
			case in.K == offsetArch:
				a = arch
			case in.K >= offsetArgs && in.K%8 == 0:
				a = uint32(args[(in.K-offsetArgs)/8])
			default:
				t.Fatalf("load at %d", in.K)
			}
		case opAnd:
			a &= in.K
		case opEqual:
			jump(a == in.K)
		case opAbove:
			jump(a >= in.K)
		case opRet:
			switch in.K & unix.SECCOMP_RET_ACTION_FULL {
			case unix.SECCOMP_RET_ALLOW:
				return "allow"
			case unix.SECCOMP_RET_ERRNO:
				return unix.ErrnoName(unix.Errno(in.K & unix.SECCOMP_RET_DATA))
			}
			return fmt.Sprintf("%#x", in.K)
		default:
			t.Fatalf("instruction %d: code %#x", pc, in.Code)
		}
	}
	t.Fatal("the program runs over its end")
	return ""
}

func TestRules(t *testing.T) {
	const pid = 4711
	process, vcpu := assemble(processRules(pid, false)), assemble(vcpuRules(pid))
	const all = ^uint64(0)
	for _, c := range []struct {
		name          string
		nr            uint32
		args          [6]uint64
		process, vcpu string
	}{
		{"KVM_RUN", unix.SYS_IOCTL, [6]uint64{9, 0xae80}, "allow", "allow"},
		{"KVM_SET_MSRS, with a size", unix.SYS_IOCTL, [6]uint64{9, 0x4008ae89}, "allow", "allow"},
		{"bits that the kernel drops", unix.SYS_IOCTL, [6]uint64{9, 0xae80 | 5<<32}, "allow", "allow"},
		{"KVM_CREATE_VM", unix.SYS_IOCTL, [6]uint64{9, 0xae01}, "allow", "EPERM"},
		{"KVM_CREATE_VM, with such bits", unix.SYS_IOCTL, [6]uint64{9, 0xae01 | 5<<32}, "allow", "EPERM"},
		{"KVM_CREATE_VCPU", unix.SYS_IOCTL, [6]uint64{9, 0xae41}, "allow", "EPERM"},
		{"KVM_CREATE_DEVICE", unix.SYS_IOCTL, [6]uint64{9, 0xc00caee0}, "allow", "EPERM"},
		{"SIOCOUTQ", unix.SYS_IOCTL, [6]uint64{9, unix.TIOCOUTQ}, "allow", "EPERM"},
		{"TIOCSTI", unix.SYS_IOCTL, [6]uint64{9, unix.TIOCSTI}, "EPERM", "EPERM"},
		{"memory", unix.SYS_MMAP, [6]uint64{0, 4096, unix.PROT_READ | unix.PROT_WRITE}, "allow", "allow"},
		{"memory with code", unix.SYS_MMAP, [6]uint64{0, 4096, unix.PROT_READ | unix.PROT_EXEC}, "EPERM", "EPERM"},
		{"code made of memory", unix.SYS_MPROTECT, [6]uint64{0, 4096, unix.PROT_EXEC}, "EPERM", "EPERM"},
		{"code by keys", unix.SYS_PKEY_MPROTECT, [6]uint64{0, 4096, unix.PROT_EXEC}, "EPERM", "EPERM"},
		{"code at an address", unix.SYS_SHMAT, [6]uint64{}, "EPERM", "EPERM"},
		{"preemption", unix.SYS_TGKILL, [6]uint64{pid, 1, 23}, "allow", "allow"},
		{"a signal to others", unix.SYS_TGKILL, [6]uint64{1, 1, 9}, "EPERM", "EPERM"},
		{"a signal to all", unix.SYS_KILL, [6]uint64{all, 9}, "EPERM", "EPERM"},
		{"a thread of Go", unix.SYS_CLONE, [6]uint64{0x50f00}, "allow", "EPERM"},
		{"fork", unix.SYS_CLONE, [6]uint64{uint64(unix.SIGCHLD)}, "EPERM", "EPERM"},
		{"vfork", unix.SYS_VFORK, [6]uint64{}, "EPERM", "EPERM"},
		{"a thread in a namespace", unix.SYS_CLONE, [6]uint64{0x50f00 | unix.CLONE_NEWUSER}, "EPERM", "EPERM"},
		{"clone3", unix.SYS_CLONE3, [6]uint64{}, "ENOSYS", "EPERM"},
		{"execve", unix.SYS_EXECVE, [6]uint64{}, "EPERM", "EPERM"},
		{"execveat", unix.SYS_EXECVEAT, [6]uint64{}, "EPERM", "EPERM"},
		{"open", unix.SYS_OPENAT, [6]uint64{}, "allow", "EPERM"},
		{"read", unix.SYS_READ, [6]uint64{}, "allow", "EPERM"},
		{"write", unix.SYS_WRITE, [6]uint64{}, "allow", "allow"},
		{"unix socket", unix.SYS_SOCKET, [6]uint64{unix.AF_UNIX}, "allow", "EPERM"},
		{"TCP", unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK}, "allow", "EPERM"},
		{"TCP of IPv6", unix.SYS_SOCKET, [6]uint64{unix.AF_INET6, unix.SOCK_STREAM}, "allow", "EPERM"},
		{"UDP", unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC}, "EPERM", "EPERM"},
		{"UDP of IPv6", unix.SYS_SOCKET, [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM}, "EPERM", "EPERM"},
		{"ICMP", unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_RAW}, "EPERM", "EPERM"},
		{"a datagram to the service manager", unix.SYS_SOCKET, [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, "allow", "EPERM"},
		{"vsock", unix.SYS_SOCKET, [6]uint64{unix.AF_VSOCK}, "EPERM", "EPERM"},
		{"netlink", unix.SYS_SOCKET, [6]uint64{unix.AF_NETLINK}, "EPERM", "EPERM"},
		{"limits of its own", unix.SYS_PRLIMIT64, [6]uint64{0}, "allow", "EPERM"},
		{"limits of others", unix.SYS_PRLIMIT64, [6]uint64{1}, "EPERM", "EPERM"},
		{"another filter", unix.SYS_SECCOMP, [6]uint64{unix.SECCOMP_SET_MODE_FILTER}, "allow", "EPERM"},
		{"names of memory", unix.SYS_PRCTL, [6]uint64{prSetVMA}, "allow", "allow"},
		{"a thread's name", unix.SYS_PRCTL, [6]uint64{unix.PR_SET_NAME}, "allow", "allow"},
		{"who may trace it", unix.SYS_PRCTL, [6]uint64{unix.PR_SET_PTRACER}, "EPERM", "EPERM"},
		{"setuid", unix.SYS_SETUID, [6]uint64{}, "EPERM", "EPERM"},
		{"capset", unix.SYS_CAPSET, [6]uint64{}, "EPERM", "EPERM"},
		{"what there is not yet", 1000, [6]uint64{}, "EPERM", "EPERM"},
		{"write, by the x32 ABI", unix.SYS_WRITE | x32, [6]uint64{}, "EPERM", "EPERM"},
	} {
		if got := verdict(t, process, unix.AUDIT_ARCH_X86_64, c.nr, c.args); got != c.process {
			t.Errorf("%s: %s for the process, want %s", c.name, got, c.process)
		}
		if got := verdict(t, vcpu, unix.AUDIT_ARCH_X86_64, c.nr, c.args); got != c.vcpu {
			t.Errorf("%s: %s for a vCPU's thread, want %s", c.name, got, c.vcpu)
		}
		if got := verdict(t, process, unix.AUDIT_ARCH_I386, c.nr, c.args); got != "EPERM" {
			t.Errorf("%s: %s for a 32-bit call", c.name, got)
		}
	}
	fleet := assemble(processRules(pid, true))
	for kind, want := range map[uint64]string{unix.SOCK_STREAM: "allow", unix.SOCK_DGRAM | unix.SOCK_CLOEXEC: "allow", unix.SOCK_RAW: "EPERM", unix.SOCK_SEQPACKET: "EPERM"} {
		if got := verdict(t, fleet, unix.AUDIT_ARCH_X86_64, unix.SYS_SOCKET, [6]uint64{unix.AF_INET, kind}); got != want {
			t.Errorf("a socket of kind %d for a fleet: %s, want %s", kind, got, want)
		}
	}
	// The kernel takes 4096 instructions at most.
	if len(process) > 600 || len(vcpu) > 150 {
		t.Errorf("%d and %d instructions", len(process), len(vcpu))
	}
	// A vCPU's thread has both filters: what its own lets by the other one must let by.
	for _, r := range vcpuRules(pid) {
		if got := verdict(t, process, unix.AUDIT_ARCH_X86_64, r.nr, [6]uint64{}); len(r.allow) == 0 && got != "allow" {
			t.Errorf("system call %d is allowed to vCPUs' threads, and not to the process", r.nr)
		}
	}
}
