package jail

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Ioctls: the type of all of KVM's, and the ones that create things that a
// vCPU's thread does not need (linux/kvm.h).
const (
	ioctlType       = 0xff00
	kvmType         = 0xae00
	kvmCreateVM     = 0xae01
	kvmCreateVCPU   = 0xae41
	kvmCreateDevice = 0xc00caee0
)

// prSetVMA names memory for /proc/self/maps (linux/prctl.h), which the Go runtime does.
const prSetVMA = 0x53564d41

// vcpuRules are the system calls for a thread that runs a guest: KVM, memory
// that is not executable, waiting and waking other threads, writing to open
// files (the log, and the descriptor that wakes the runtime's poller), and
// ending. pid is our own.
func vcpuRules(pid int) []rule {
	kvm := rule{nr: unix.SYS_IOCTL, arg: 1, refuse: []masked{exactValue(kvmCreateVM), exactValue(kvmCreateVCPU), exactValue(kvmCreateDevice)}, allow: []masked{{ioctlType, kvmType}}}
	return append([]rule{kvm}, runtimeRules(pid)...)
}

// runtimeRules are the system calls that the Go runtime makes on any thread,
// also on one that is locked to a goroutine.
func runtimeRules(pid int) []rule {
	rules := []rule{
		{nr: unix.SYS_MMAP, arg: 2, allow: []masked{valuesWithout(unix.PROT_EXEC)}},
		{nr: unix.SYS_MPROTECT, arg: 2, allow: []masked{valuesWithout(unix.PROT_EXEC)}},
		{nr: unix.SYS_TGKILL, allow: []masked{exactValue(uint32(pid))}}, // preemption, and kicks of vCPUs
		{nr: unix.SYS_PRCTL, allow: []masked{exactValue(prSetVMA), exactValue(unix.PR_SET_NAME)}},
	}
	for _, nr := range []uint32{
		unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_RESTART_SYSCALL,
		unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY, unix.SYS_GETCPU,
		unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_BRK,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
		unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETRANDOM,
		unix.SYS_WRITE, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_CTL,
		unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE, // of a profile of the processor
		unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
	} {
		rules = append(rules, call(nr))
	}
	return rules
}

// thread is which flags clone must and must not have: it may create threads, but
// neither processes nor namespaces.
var thread = masked{
	mask:  unix.CLONE_THREAD | unix.CLONE_VM | unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP | unix.CLONE_PTRACE,
	value: unix.CLONE_THREAD | unix.CLONE_VM,
}

// socketKind is the part of a socket's type that is not a flag (linux/net.h,
// SOCK_TYPE_MASK).
const socketKind = 0xf

// processRules are the system calls that all threads of the daemon may use: also
// files and sockets, which Landlock restricts further, and threads. Everything
// else is denied: running programs, tracing and reading processes, changing the
// user, mounting, creating namespaces, loading code into the kernel, io_uring,
// keys, and future system calls. With names the process may resolve names of
// servers, by UDP.
func processRules(pid int, names bool) []rule {
	// Landlock knows only TCP, so other protocols of the internet are denied,
	// except UDP to resolve names of servers.
	kinds := []masked{{socketKind, unix.SOCK_STREAM}}
	if names {
		kinds = append(kinds, masked{socketKind, unix.SOCK_DGRAM})
	}
	rules := append([]rule{{nr: unix.SYS_IOCTL, arg: 1, allow: []masked{
		{ioctlType, kvmType},
		exactValue(unix.TIOCOUTQ), // how much of a stream its client has not read
	}}}, runtimeRules(pid)...)
	rules = append(rules,
		rule{nr: unix.SYS_CLONE, allow: []masked{thread}},
		rule{nr: unix.SYS_CLONE3, never: true, errno: unix.ENOSYS}, // its flags are in memory, which a filter cannot read; C libraries fall back to clone
		rule{nr: unix.SYS_SOCKET, allow: []masked{exactValue(unix.AF_UNIX)}, when: []masked{exactValue(unix.AF_INET), exactValue(unix.AF_INET6)}, then: &rule{arg: 1, allow: kinds}},
		rule{nr: unix.SYS_KILL, allow: []masked{exactValue(uint32(pid))}},
		rule{nr: unix.SYS_PRLIMIT64, allow: []masked{exactValue(0), exactValue(uint32(pid))}},
		// Filters of vCPU threads; a filter can only restrict further.
		rule{nr: unix.SYS_SECCOMP, allow: []masked{exactValue(unix.SECCOMP_SET_MODE_FILTER)}},
	)
	return append(rules, calls(
		// Files.
		unix.SYS_READ, unix.SYS_READV, unix.SYS_PREAD64, unix.SYS_PREADV, unix.SYS_WRITEV, unix.SYS_PWRITE64, unix.SYS_PWRITEV, unix.SYS_LSEEK,
		unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_OPEN, unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE, unix.SYS_FCNTL, unix.SYS_FLOCK, unix.SYS_DUP, unix.SYS_DUP2, unix.SYS_DUP3,
		unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_FSTAT, unix.SYS_NEWFSTATAT, unix.SYS_STATX, unix.SYS_STATFS, unix.SYS_FSTATFS,
		unix.SYS_ACCESS, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINK, unix.SYS_READLINKAT, unix.SYS_GETDENTS64, unix.SYS_GETCWD,
		unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FADVISE64, unix.SYS_COPY_FILE_RANGE,
		unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_UNLINK, unix.SYS_UNLINKAT, unix.SYS_RMDIR, unix.SYS_FCHMOD, unix.SYS_UMASK,
		unix.SYS_PIPE2, unix.SYS_EVENTFD2, unix.SYS_SENDFILE, unix.SYS_SPLICE,
		// Sockets.
		unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT4, unix.SYS_SHUTDOWN, unix.SYS_SOCKETPAIR,
		unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT,
		unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RECVMMSG,
		unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_WAIT, unix.SYS_POLL, unix.SYS_PPOLL, unix.SYS_SELECT, unix.SYS_PSELECT6,
		// Threads and memory.
		unix.SYS_RSEQ, unix.SYS_SET_ROBUST_LIST, unix.SYS_SET_TID_ADDRESS, unix.SYS_SCHED_GETAFFINITY, unix.SYS_MEMBARRIER, unix.SYS_ARCH_PRCTL,
		unix.SYS_MREMAP, unix.SYS_MEMFD_CREATE, unix.SYS_MINCORE, unix.SYS_TIMER_CREATE, unix.SYS_SETITIMER,
		// Information about the process itself and the machine.
		unix.SYS_GETPPID, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETGROUPS, unix.SYS_UNAME, unix.SYS_SYSINFO,
		unix.SYS_GETRLIMIT, unix.SYS_GETRUSAGE, unix.SYS_TIMES, unix.SYS_CLOCK_GETRES, unix.SYS_CAPGET,
	)...)
}

// calls are system calls that are allowed with any arguments.
func calls(nrs ...uint32) []rule {
	return slices.Collect(func(yield func(rule) bool) {
		for _, nr := range nrs {
			if !yield(call(nr)) {
				return
			}
		}
	})
}
