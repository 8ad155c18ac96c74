package jail

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Config describes what a process still needs. It drops everything else.
type Config struct {
	Files Files
	Net   Net
	// User is the user that the process changes to; nil: it does not change.
	User *User
	// Group is joined if the process is allowed to, so that it can give files to
	// the group; negative: none.
	Group int
	// Keep are the capabilities that stay (CAP_*).
	Keep []int
	// Descriptors is how many files may be open at a time; 0: the present limit.
	Descriptors uint64
	// Data bounds the process's private memory, in bytes; 0: no bound.
	Data uint64
}

// Report lists what a process has dropped, and which restrictions this kernel
// lacks.
type Report struct {
	User         int      // the process's user now
	Group        int      // and its group
	Capabilities []string // the remaining ones, by name
	Landlock     int      // version of the kernel's Landlock ABI that restricts files; 0: not restricted
	Network      bool     // TCP is restricted
	Seccomp      bool     // system calls are restricted
	Missing      []string // restrictions that the kernel lacks, as sentences
}

// Complete reports whether nothing is missing.
func (r *Report) Complete() bool { return len(r.Missing) == 0 }

// entered is set when the filter of the process is in force. The filters of vCPU
// threads are added to it.
var entered atomic.Bool

// Enter restricts the whole process for good, with all present and future
// threads. It skips restrictions that the kernel does not support, and lists
// them in the report. After an error some of them may be in force: the process
// should end.
//
// The order matters: the user is changed while there are capabilities for that,
// and system calls come last, because all other steps need some.
func Enter(c Config) (Report, error) {
	var r Report
	Host()
	if err := prctlAllThreads(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return r, fmt.Errorf("no new privileges: %w", err)
	}
	if err := setLimits(c); err != nil {
		return r, err
	}
	// While there is the capability for it.
	if err := dropBounding(c.Keep); err != nil {
		return r, fmt.Errorf("bounding set: %w", err)
	}
	if err := become(c); err != nil {
		return r, err
	}
	var err error
	if r.Capabilities, err = dropCapabilities(c.Keep); err != nil {
		return r, fmt.Errorf("capabilities: %w", err)
	}
	if err := restrictFiles(c.Files, c.Net, &r); err != nil {
		return r, fmt.Errorf("landlock: %w", err)
	}
	switch err := install(processRules(unix.Getpid(), c.Net.Dial), true); {
	case err == nil:
		r.Seccomp = true
		entered.Store(true)
	case lacks(err):
		r.Missing = append(r.Missing, "system calls are not confined: the kernel has no seccomp filters ("+err.Error()+")")
	default:
		return r, fmt.Errorf("seccomp: %w", err)
	}
	r.User, r.Group = unix.Geteuid(), unix.Getegid()
	return r, nil
}

// VCPU restricts the calling thread, which is locked to its goroutine for good,
// to the needs of a thread that runs guests. It can open no file, create no
// socket and no thread, and create no VM and no vCPU. VCPU does nothing in a
// process that has not entered the jail, or whose kernel has no filters.
func VCPU() error {
	if !entered.Load() {
		return nil
	}
	if err := install(vcpuRules(unix.Getpid()), false); err != nil {
		return fmt.Errorf("confine vcpu thread: %w", err)
	}
	return nil
}

// lacks reports whether an error means that the system call is missing, in the
// kernel or in a jail that we already are in.
func lacks(err error) bool {
	return slices.ContainsFunc([]unix.Errno{unix.ENOSYS, unix.EINVAL, unix.EPERM, unix.EOPNOTSUPP, unix.EACCES}, func(e unix.Errno) bool {
		return err == e
	})
}

// Host describes in a line which restrictions this kernel supports. A restricted
// process cannot find that out any more, so it is determined once.
var Host = sync.OnceValue(func() string {
	var has []string
	if abi := landlockABI(); abi > 0 {
		has = append(has, fmt.Sprintf("Landlock ABI %d", abi))
	}
	if hasFilters() {
		has = append(has, "seccomp filters")
	}
	if len(has) == 0 {
		return "neither Landlock nor seccomp"
	}
	return strings.Join(has, ", ")
})
