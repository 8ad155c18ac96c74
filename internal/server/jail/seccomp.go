package jail

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// install puts rules in force, either for all present and future threads, or for
// the calling one and the threads that it starts. no_new_privs must be set.
func install(rules []rule, all bool) error {
	p := assemble(rules)
	var flags uint = unix.SECCOMP_FILTER_FLAG_LOG
	if all {
		flags |= unix.SECCOMP_FILTER_FLAG_TSYNC
	}
	thread, err := seccompFilter(p, flags)
	if errors.Is(err, unix.EINVAL) { // Linux before 4.14 logs nothing
		thread, err = seccompFilter(p, flags&^unix.SECCOMP_FILTER_FLAG_LOG)
	}
	if err == nil && thread != 0 {
		err = fmt.Errorf("thread %d has a filter of its own", thread)
	}
	return err
}

// hasFilters reports whether the kernel has seccomp filters.
func hasFilters() bool { return seccompKnows(unix.SECCOMP_RET_ERRNO) }
