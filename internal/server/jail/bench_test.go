package jail

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkIoctl is what the filters add to the one system call of an exit: an ioctl of KVM that fails at once, free, under the
// process's filter, and under a vCPU's on top of it. It confines the process that runs it, so that it is the last.
func BenchmarkIoctl(b *testing.B) {
	ioctl := func(b *testing.B) {
		runtime.LockOSThread()
		var from, to unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &from) // it is always there
		for b.Loop() {
			_, _, _ = unix.RawSyscall(unix.SYS_IOCTL, ^uintptr(0), 0xae80, 0)
		}
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &to)
		b.ReportMetric(float64(to.Nano()-from.Nano())/float64(b.N), "cpu-ns/op")
	}
	locked := func(f func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // and ends with the goroutine
			f()
		}()
		<-done
	}
	b.Run("free", ioctl)
	if _, err := Enter(Config{Group: -1, Files: Files{List: []string{"/"}}}); err != nil {
		b.Fatal(err)
	}
	b.Run("process", ioctl)
	b.Run("vcpu", func(b *testing.B) {
		locked(func() {
			if err := VCPU(); err != nil {
				b.Error(err)
			}
			ioctl(b)
		})
	})
}
