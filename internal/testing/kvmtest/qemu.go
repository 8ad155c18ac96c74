package kvmtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// QEMU is a VM that a test has started with Debian's QEMU: the guest of
// testdata/guests/multiboot.elf, which counts calls at CPL 3 for ever.
type QEMU struct {
	PID int
	QMP string // its socket, or ""

	Ended <-chan struct{} // closed when it has ended
}

// StartQEMU starts a VM of that name, which ends with the test. With qmp its RAM
// is in a shared file, and it has a QMP socket. Flags are QEMU's. repo is the
// path of the repository.
func StartQEMU(tb testing.TB, repo, name string, qmp bool, flags ...string) *QEMU {
	tb.Helper()
	Require(tb)
	path := RequireCommand(tb, "qemu-system-x86_64")
	image, err := filepath.Abs(filepath.Join(repo, "testdata/guests/multiboot.elf"))
	if err != nil {
		tb.Fatal(err)
	}
	ended := make(chan struct{})
	q := &QEMU{Ended: ended}
	dir := tb.TempDir()
	args := []string{
		"-enable-kvm", "-name", "guest=" + name + ",debug-threads=on", "-machine", "microvm", "-m", "32", "-nodefaults", "-no-user-config",
		"-display", "none", "-kernel", image,
	}
	if qmp {
		q.QMP = filepath.Join(dir, "qmp")
		args = append(args,
			"-object", "memory-backend-file,id=mem,mem-path="+filepath.Join(dir, "ram")+",size=32M,share=on", "-machine", "memory-backend=mem",
			"-qmp", "unix:"+q.QMP+",server=on,wait=off")
	}
	cmd := exec.Command(path, append(args, flags...)...)
	var log bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &log
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	q.PID = cmd.Process.Pid
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if tb.Failed() {
			tb.Logf("QEMU said: %s", log.String())
		}
	})
	return q
}
