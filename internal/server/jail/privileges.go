package jail

import (
	"fmt"
	"math/bits"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// User is who a process becomes.
type User struct {
	UID, GID int
	Groups   []int // besides
}

// become makes the process User, and a member of Group.
func become(c Config) error {
	groups, err := unix.Getgroups()
	if err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	root := unix.Geteuid() == 0
	if c.User != nil {
		groups = slices.Clone(c.User.Groups)
	}
	// What is made in the name of the group later is given to it by a member, without a capability.
	if c.Group >= 0 && !slices.Contains(groups, c.Group) {
		groups = append(groups, c.Group)
	}
	if c.User == nil && !root {
		return nil
	}
	switch err := syscall.Setgroups(groups); {
	case err == nil:
	case c.User == nil: // root of a user namespace may not: it stays with what it has
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
	// The kernel takes /proc/self away from who has changed user (prctl(2), PR_SET_DUMPABLE). What we have open is the
	// daemon's own business, and its user may trace it as if the daemon had been started by it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("dumpable: %w", err)
	}
	return nil
}

// dropCapabilities gives up all capabilities of all threads but these, and returns the names of what is left.
// no_new_privs keeps execve from bringing any back, to root too (security/commoncap.c).
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

// maxCapability is above all that a kernel may know.
const maxCapability = 63

// dropBounding takes all capabilities but these out of the bounding set of all threads. Who has not the capability to do that has
// nothing that it would bound.
func dropBounding(keep []int) error {
	for n := range maxCapability {
		if slices.Contains(keep, n) {
			continue
		}
		switch err := allThreadsPrctl(unix.PR_CAPBSET_DROP, uintptr(n)); err {
		case nil:
		case unix.EINVAL, unix.EPERM: // this kernel has no more; or we may not
			return nil
		default:
			return err
		}
	}
	return nil
}

// capabilityName names what a daemon may keep.
func capabilityName(n int) string {
	if n == unix.CAP_NET_BIND_SERVICE {
		return "CAP_NET_BIND_SERVICE"
	}
	return fmt.Sprintf("capability %d", n)
}

// setLimits bounds what the process may take of the host. There is no bound on processes: RLIMIT_NPROC counts those of the
// user all over the machine, and clone makes threads alone.
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
	// A core would have the guest's memory in it.
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
