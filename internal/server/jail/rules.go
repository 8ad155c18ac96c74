package jail

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Of ioctls: all of KVM's, of which two make what a vCPU has no business with (linux/kvm.h).
const (
	ioctlType       = 0xff00
	kvmType         = 0xae00
	kvmCreateVM     = 0xae01
	kvmCreateVCPU   = 0xae41
	kvmCreateDevice = 0xc00caee0
)

// prSetVMA names memory for /proc/self/maps (linux/prctl.h), which the Go runtime does.
const prSetVMA = 0x53564d41

// vcpuRules are what a thread may that runs a guest: KVM, memory that is not executable, to wait and to wake others, to write to
// files that are open (the log, and the descriptor that wakes the runtime's poller), and to end. pid is our own.
func vcpuRules(pid int) []rule {
	kvm := rule{nr: unix.SYS_IOCTL, arg: 1, refuse: []masked{exactly(kvmCreateVM), exactly(kvmCreateVCPU), exactly(kvmCreateDevice)}, allow: []masked{{ioctlType, kvmType}}}
	return append([]rule{kvm}, runtimeRules(pid)...)
}

// runtimeRules are what the Go runtime asks for on any thread, that of a goroutine which is locked to it too.
func runtimeRules(pid int) []rule {
	rules := []rule{
		{nr: unix.SYS_MMAP, arg: 2, allow: []masked{without(unix.PROT_EXEC)}},
		{nr: unix.SYS_MPROTECT, arg: 2, allow: []masked{without(unix.PROT_EXEC)}},
		{nr: unix.SYS_TGKILL, allow: []masked{exactly(uint32(pid))}}, // preemption, and kicks of vCPUs
		{nr: unix.SYS_PRCTL, allow: []masked{exactly(prSetVMA), exactly(unix.PR_SET_NAME)}},
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

// thread is what clone must be told, and must not: it makes threads, and neither processes nor namespaces.
var thread = masked{
	mask:  unix.CLONE_THREAD | unix.CLONE_VM | unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP | unix.CLONE_PTRACE,
	value: unix.CLONE_THREAD | unix.CLONE_VM,
}

// socketKind is the part of a socket's type that is no flag (linux/net.h, SOCK_TYPE_MASK).
const socketKind = 0xf

// processRules are what all threads of the daemon may: files and sockets besides, of which Landlock says which, and threads.
// What is not there is refused: to run programs, trace and read processes, change user, mount, make namespaces, load code into
// the kernel, io_uring, keys, and whatever comes to be. With names the process may ask for names of servers, by UDP.
func processRules(pid int, names bool) []rule {
	// Landlock knows TCP alone, so there is no other protocol of the internet, but for who asks for names of servers.
	kinds := []masked{{socketKind, unix.SOCK_STREAM}}
	if names {
		kinds = append(kinds, masked{socketKind, unix.SOCK_DGRAM})
	}
	rules := append([]rule{{nr: unix.SYS_IOCTL, arg: 1, allow: []masked{
		{ioctlType, kvmType},
		exactly(unix.TIOCOUTQ), // how much of a stream its client has not read
	}}}, runtimeRules(pid)...)
	rules = append(rules,
		rule{nr: unix.SYS_CLONE, allow: []masked{thread}},
		rule{nr: unix.SYS_CLONE3, never: true, errno: unix.ENOSYS}, // what it is told is out of sight; C libraries take clone then
		rule{nr: unix.SYS_SOCKET, allow: []masked{exactly(unix.AF_UNIX)}, when: []masked{exactly(unix.AF_INET), exactly(unix.AF_INET6)}, then: &rule{arg: 1, allow: kinds}},
		rule{nr: unix.SYS_KILL, allow: []masked{exactly(uint32(pid))}},
		rule{nr: unix.SYS_PRLIMIT64, allow: []masked{exactly(0), exactly(uint32(pid))}},
		// Filters of vCPU threads; a filter only ever takes away.
		rule{nr: unix.SYS_SECCOMP, allow: []masked{exactly(unix.SECCOMP_SET_MODE_FILTER)}},
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
		// What the process may know of itself and of the machine.
		unix.SYS_GETPPID, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETGROUPS, unix.SYS_UNAME, unix.SYS_SYSINFO,
		unix.SYS_GETRLIMIT, unix.SYS_GETRUSAGE, unix.SYS_TIMES, unix.SYS_CLOCK_GETRES, unix.SYS_CAPGET,
	)...)
}

// calls are system calls that are allowed whatever their arguments are.
func calls(nrs ...uint32) []rule {
	return slices.Collect(func(yield func(rule) bool) {
		for _, nr := range nrs {
			if !yield(call(nr)) {
				return
			}
		}
	})
}
