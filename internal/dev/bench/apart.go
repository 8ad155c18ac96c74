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

// forEachThread calls f with each thread of this process, and the vCPU that it
// runs, or -1. Threads that end during the call are skipped.
func forEachThread(f func(tid, vcpu int) error) error {
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
			vcpu := -1
			if n, ok := strings.CutPrefix(strings.TrimSpace(string(name)), strings.TrimSuffix(kvm.ThreadName(0), "0")); ok {
				if vcpu, err = strconv.Atoi(n); err != nil {
					return err
				}
			}
			err = f(tid, vcpu)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// separateThreads gives the thread of vCPU 0 the first processor that this
// process may use, and all others the rest. free undoes that. A thread that is
// created in between stays on its creator's processors.
func separateThreads() (free func() error, err error) {
	var all, first, rest unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("processors: %w", err)
	}
	if all.Count() < 2 {
		return nil, errors.New("a vCPU needs a processor of its own, and there is one")
	}
	rest = all
	for cpu := 0; first.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			first.Set(cpu)
			rest.Clear(cpu)
		}
	}
	found := false
	if err := forEachThread(func(tid, vcpu int) error {
		if vcpu == 0 { // that of another guest rests
			found = true
			return unix.SchedSetaffinity(tid, &first)
		}
		return unix.SchedSetaffinity(tid, &rest)
	}); err != nil {
		return nil, fmt.Errorf("processors of threads: %w", err)
	}
	if !found {
		return nil, errors.New("the thread of vCPU 0 was not found")
	}
	return func() error {
		return forEachThread(func(tid, _ int) error { return unix.SchedSetaffinity(tid, &all) })
	}, nil
}

// times is how much processor time threads of this process have had (proc(5), schedstat).
type times struct {
	first  time.Duration // that of vCPU 0
	vcpus  time.Duration // all vCPUs together
	others time.Duration // all other threads
}

// threadTimes returns the processor time of the threads so far.
func threadTimes() (t times, err error) {
	err = forEachThread(func(tid, vcpu int) error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", tid))
		if err != nil {
			return err
		}
		ns, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.ParseInt(ns, 10, 64)
		if vcpu < 0 {
			t.others += time.Duration(n)
			return err
		}
		if t.vcpus += time.Duration(n); vcpu == 0 {
			t.first += time.Duration(n)
		}
		return err
	})
	return t, err
}
