package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/kvm"
)

// eachThread calls f with each thread of this process, and whether it is a vCPU's. One that ends meanwhile is left out.
func eachThread(f func(tid int, vcpu bool) error) error {
	comms, err := filepath.Glob("/proc/self/task/*/comm")
	if err != nil {
		return err
	}
	for _, path := range comms {
		tid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return err
		}
		name, err := os.ReadFile(path)
		if err == nil {
			err = f(tid, strings.HasPrefix(string(name), strings.TrimSuffix(kvm.ThreadName(0), "0")))
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// apart gives the threads of vCPUs the first processor that this process may use, and all others the rest. Free takes
// that back. A thread that is made meanwhile is where its maker is.
func apart(vcpus int) (free func() error, err error) {
	var all, first, rest unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("processors: %w", err)
	}
	if all.Count() < 2 {
		return nil, errors.New("the vCPUs need a processor of their own, and there is one")
	}
	rest = all
	for cpu := 0; first.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			first.Set(cpu)
			rest.Clear(cpu)
		}
	}
	found := 0
	if err := eachThread(func(tid int, vcpu bool) error {
		if vcpu {
			found++
			return unix.SchedSetaffinity(tid, &first)
		}
		return unix.SchedSetaffinity(tid, &rest)
	}); err != nil {
		return nil, fmt.Errorf("processors of threads: %w", err)
	}
	if found < vcpus { // those of other guests rest
		return nil, fmt.Errorf("%d threads of %d vCPUs were found", found, vcpus)
	}
	return func() error {
		return eachThread(func(tid int, _ bool) error { return unix.SchedSetaffinity(tid, &all) })
	}, nil
}

// threadTimes is how much processor time the threads of vCPUs, and all others of this process, have had until now
// (proc(5), schedstat).
func threadTimes() (vcpus, others time.Duration, err error) {
	err = eachThread(func(tid int, vcpu bool) error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", tid))
		if err != nil {
			return err
		}
		ns, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.ParseInt(ns, 10, 64)
		if vcpu {
			vcpus += time.Duration(n)
		} else {
			others += time.Duration(n)
		}
		return err
	})
	return vcpus, others, err
}
