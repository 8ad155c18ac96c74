package jail

import (
	"fmt"
	"math/bits"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// User is the user that a process changes to.
type User struct {
	UID, GID int
	Groups   []int // in addition
}

// become changes the process to User, and makes it a member of Group.
func become(c Config) error {
	groups, err := unix.Getgroups()
	if err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	root := unix.Geteuid() == 0
	if c.User != nil {
		groups = slices.Clone(c.User.Groups)
	}
	// A member of the group can later give files to it without a capability.
	if c.Group >= 0 && !slices.Contains(groups, c.Group) {
		groups = append(groups, c.Group)
	}
	if c.User == nil && !root {
		return nil
	}
	switch err := syscall.Setgroups(groups); {
	case err == nil:
	case c.User == nil: // not allowed to root of a user namespace, who keeps its groups
		return nil
	default:
		return fmt.Errorf("groups: %w", err)
	}
	if c.User == nil {
		return nil
	}
	if err := syscall.Setresgid(c.User.GID, c.User.GID, c.User.GID); err != nil {
		return fmt.Errorf("group %d: %w", c.User.GID, err)
	}
	if err := syscall.Setresuid(c.User.UID, c.User.UID, c.User.UID); err != nil {
		return fmt.Errorf("user %d: %w", c.User.UID, err)
	}
	// The kernel takes /proc/self away from a process that has changed its user
	// (prctl(2), PR_SET_DUMPABLE). Our open files are the daemon's own, and its
	// user may trace it as if that user had started the daemon.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("dumpable: %w", err)
	}
	return nil
}

// dropCapabilities drops all capabilities of all threads except keep, and
// returns the names of the remaining ones. no_new_privs keeps execve from
// bringing any back, even for root (security/commoncap.c).
func dropCapabilities(keep []int) (left []string, err error) {
	has, err := capabilities()
	if err != nil {
		return nil, err
	}
	var want [2]uint32
	for _, n := range keep {
		want[n/32] |= 1 << (n % 32)
	}
	want[0], want[1] = want[0]&has[0], want[1]&has[1]
	if err := setCapabilities(want); err != nil {
		return nil, err
	}
	for i, w := range want {
		for ; w != 0; w &= w - 1 {
			left = append(left, capabilityName(i*32+bits.TrailingZeros32(w)))
		}
	}
	return left, nil
}

// maxCapability is larger than any capability of a kernel.
const maxCapability = 63

// dropBounding removes all capabilities except keep from the bounding set of all
// threads. A process without the capability to do that has no capabilities to
// bound.
func dropBounding(keep []int) error {
	for n := range maxCapability {
		if slices.Contains(keep, n) {
			continue
		}
		switch err := prctlAllThreads(unix.PR_CAPBSET_DROP, uintptr(n)); err {
		case nil:
		case unix.EINVAL, unix.EPERM: // this kernel has no more; or we are not allowed to
			return nil
		default:
			return err
		}
	}
	return nil
}

// capabilityName returns the name of a capability that a daemon may keep.
func capabilityName(n int) string {
	if n == unix.CAP_NET_BIND_SERVICE {
		return "CAP_NET_BIND_SERVICE"
	}
	return fmt.Sprintf("capability %d", n)
}

// setLimits bounds the host's resources that the process may use. It does not
// bound processes: RLIMIT_NPROC counts the user's processes on the whole
// machine, and the filter lets clone create only threads.
func setLimits(c Config) error {
	set := func(name string, resource int, n uint64) error {
		var now unix.Rlimit
		if err := unix.Getrlimit(resource, &now); err != nil {
			return fmt.Errorf("limit of %s: %w", name, err)
		}
		n = min(n, now.Max)
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("limit of %s to %d: %w", name, n, err)
		}
		return nil
	}
	// A core file would contain the guest's memory.
	if err := set("core files", unix.RLIMIT_CORE, 0); err != nil {
		return err
	}
	if c.Descriptors != 0 {
		if err := set("open files", unix.RLIMIT_NOFILE, c.Descriptors); err != nil {
			return err
		}
	}
	if c.Data != 0 {
		return set("memory", unix.RLIMIT_DATA, c.Data)
	}
	return nil
}
