package jail

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Config says what a process goes on to need. Everything else is given up.
type Config struct {
	Files Files
	Net   Net
	// User is who the process becomes; nil: it stays who it is.
	User *User
	// Group is joined where the process may do that, so that it can give files to it; negative: none.
	Group int
	// Keep are the capabilities that stay (CAP_*).
	Keep []int
	// Descriptors is how many files may be open at a time; 0: as many as now.
	Descriptors uint64
	// Data bounds the process's private memory, in bytes; 0: nothing does.
	Data uint64
}

// Report is what a process has given up, and what of it this kernel could not take.
type Report struct {
	User         int      // who the process is now
	Group        int      // and its group
	Capabilities []string // those that are left, by name
	Landlock     int      // version of the kernel's Landlock ABI that files are confined by; 0: they are not
	Network      bool     // TCP is confined
	Seccomp      bool     // system calls are
	Missing      []string // what the kernel lacks, as sentences
}

// Complete reports whether nothing is missing.
func (r *Report) Complete() bool { return len(r.Missing) == 0 }

// entered is set when the filter of the process is in force: those of vCPU threads go on top of it.
var entered atomic.Bool

// Enter confines the whole process, all threads that it has and will have, for good. What the kernel does not know it
// leaves out, and says so in the report. After an error some of it may be in force: the process should end.
//
// The order matters: the user goes while there are capabilities for that, and system calls come last, since all before
// are some.
func Enter(c Config) (Report, error) {
	var r Report
	Host()
	if err := allThreadsPrctl(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
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

// VCPU confines the calling thread, which is locked to its goroutine for good, to what a thread needs that runs guests: it opens no
// file, makes no socket and no thread, and asks of KVM nothing that makes a VM or a vCPU. It does nothing in a process that
// has not entered the jail, or whose kernel has no filters.
func VCPU() error {
	if !entered.Load() {
		return nil
	}
	if err := install(vcpuRules(unix.Getpid()), false); err != nil {
		return fmt.Errorf("confine vcpu thread: %w", err)
	}
	return nil
}

// lacks reports whether an error says that a kernel, or whoever confines us already, has no such system call.
func lacks(err error) bool {
	return slices.ContainsFunc([]unix.Errno{unix.ENOSYS, unix.EINVAL, unix.EPERM, unix.EOPNOTSUPP, unix.EACCES}, func(e unix.Errno) bool {
		return err == e
	})
}

// Host says in a line what this kernel can confine a process by. Who is confined may not ask any more: it is asked once.
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
