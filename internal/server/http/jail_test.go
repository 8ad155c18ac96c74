package http

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/jail"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// triesEnv has this binary be a daemon that tries what it must not, once it is confined: "jail", or "free" without. Its value goes
// on with the address of a TCP server and the name of a file of others.
const triesEnv = "GUESTPROBE_TEST_TRIES"

// tried is what came of it, by name: the name of an errno, or "".
type tried struct {
	Report  jail.Report
	Process map[string]string // on any thread
	VCPU    map[string]string // on a thread of a vCPU
}

func errnoOf(err error) string {
	var e syscall.Errno
	if errors.As(err, &e) {
		return unix.ErrnoName(e)
	} else if err != nil {
		return err.Error()
	}
	return ""
}

// rawSyscall is a system call with numbers alone.
func rawSyscall(nr uintptr, args ...uintptr) string {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return unix.ErrnoName(e)
	}
	return ""
}

func tryOpen(path string, flags int) string {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	return errnoOf(err)
}

// none is an argument that is no descriptor and no address.
const none = ^uintptr(0)

// tryAll tries it all. What needs arguments in memory gets none: it fails with another errno where it is not refused.
func tryAll(server, file, own string) map[string]string {
	dialed := func() string {
		c, err := net.Dial("tcp", server)
		if err == nil {
			c.Close()
		}
		return errnoOf(err)
	}
	mapped := func() string {
		b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err == nil {
			_ = unix.Munmap(b)
		}
		return errnoOf(err)
	}
	return map[string]string{
		"open to read":        tryOpen(file, unix.O_RDONLY),
		"open to write":       tryOpen(file, unix.O_WRONLY),
		"make a file":         tryOpen(file+"-new", unix.O_WRONLY|unix.O_CREAT),
		"remove a file":       errnoOf(unix.Unlink(file + "-other")),
		"memory of process 1": tryOpen("/proc/1/mem", unix.O_RDWR),
		"open its own":        tryOpen(own, unix.O_RDWR|unix.O_CREAT),
		"exec":                errnoOf(unix.Exec("/nonexistent", []string{"x"}, nil)),
		"connect TCP":         dialed(),
		"ptrace":              rawSyscall(unix.SYS_PTRACE, unix.PTRACE_SEIZE, none>>1),
		"new user namespace":  rawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_THREAD),
		"raise ids":           rawSyscall(unix.SYS_SETRESUID, none, none, none),
		"mount":               rawSyscall(unix.SYS_MOUNT, 0, none, 0, 0, 0),
		"bpf":                 rawSyscall(unix.SYS_BPF, 0xffff, 0, 0),
		"kexec_load":          rawSyscall(unix.SYS_KEXEC_LOAD, 0, none, 0, none),
		"io_uring":            rawSyscall(unix.SYS_IO_URING_SETUP, 0, none),
		"code in memory":      mapped(),
		"read a process":      rawSyscall(unix.SYS_PROCESS_VM_READV, uintptr(os.Getppid()), 0, 0, 0, 0, none),
		"signal others":       rawSyscall(unix.SYS_KILL, uintptr(os.Getppid()), 0),
		"packets":             rawSyscall(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW),
		"new VM":              rawSyscall(unix.SYS_IOCTL, none, 0xae01),
		"run a VM":            rawSyscall(unix.SYS_IOCTL, none, 0xae80),
		"a terminal's ioctl":  rawSyscall(unix.SYS_IOCTL, none, unix.TCGETS),
		"open /dev/kvm":       tryOpen("/dev/kvm", unix.O_RDWR),
		"socket":              rawSyscall(unix.SYS_SOCKET, unix.AF_UNIX, none),
	}
}

// triesMain is the daemon that tries.
func triesMain(how string) int {
	parts := strings.Split(how, " ")
	server, file, own := parts[1], parts[2], parts[3]
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	enter := func(c jail.Config) (r jail.Report, err error) {
		if parts[0] == "jail" {
			if r, err = jail.Enter(c); err != nil {
				return r, err
			}
		}
		out := tried{Report: r, Process: tryAll(server, file, own)}
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // and ends with this goroutine
			err := jail.VCPU()
			out.VCPU = tryAll(server, file, own)
			done <- err
		}()
		if err := <-done; err != nil {
			return r, err
		}
		results := os.NewFile(3, "results")
		return r, errors.Join(json.NewEncoder(results).Encode(out), results.Close())
	}
	p := commandLine(func(o *options, _ bootable, _ *slog.Logger) (Guest, error) {
		return newFakeGuest(nopTB{}, o.vcpus), nil
	}, nil, nil, enter)
	return p.Run(ctx, command.Process())
}

// startTrying starts that daemon and returns what came of its tries, when it serves.
func startTrying(t *testing.T, how string, args ...string) (out tried, c *remote.Client, cmd *exec.Cmd, log *syncBuffer) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	dir, err := os.MkdirTemp("", "gp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	for _, name := range []string{"f", "f-other"} {
		if err := os.WriteFile(filepath.Join(other, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(other, "f")
	results, tell, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer results.Close()
	ready, served, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket, state := filepath.Join(dir, "s"), filepath.Join(dir, "state")
	log = &syncBuffer{}
	cmd = exec.CommandContext(patience.Context(t), self, append([]string{"--socket", socket, "--state", state, "--ready-fd", "4"}, args...)...)
	cmd.Env = append(os.Environ(), triesEnv+"="+strings.Join([]string{how, l.Addr().String(), file, filepath.Join(state, "own")}, " "))
	cmd.ExtraFiles, cmd.Stderr = []*os.File{tell, served}, log
	err = cmd.Start()
	tell.Close()
	served.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	b, err := io.ReadAll(results)
	if err == nil && len(b) > 0 {
		err = json.Unmarshal(b, &out)
	}
	line, rerr := bufio.NewReader(ready).ReadString('\n')
	if err != nil || rerr != nil || !strings.HasPrefix(line, "ready ") {
		t.Fatalf("the daemon does not serve (%v, %v, %q); its log:\n%s", err, rerr, line, log)
	}
	c = remote.New(socket)
	t.Cleanup(c.Close)
	return out, c, cmd, log
}

// end ends that daemon, which must say nothing against it.
func endTrying(t *testing.T, cmd *exec.Cmd, log *syncBuffer) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the daemon ended with %v; its log:\n%s", err, log)
	}
}

// wantTried is what must come of the tries where the kernel has everything.
func wantTried() (process, vcpu map[string]string) {
	process, vcpu = map[string]string{}, map[string]string{}
	for name := range tryAll("127.0.0.1:1", "/nonexistent/f", "/nonexistent/own") {
		process[name], vcpu[name] = "EPERM", "EPERM"
	}
	for _, name := range []string{"open to read", "open to write", "make a file", "remove a file", "memory of process 1", "connect TCP", "open /dev/kvm"} {
		process[name] = "EACCES" // it is Landlock that says so
	}
	process["open its own"] = ""
	process["new VM"], process["run a VM"] = "EBADF", "EBADF"
	vcpu["run a VM"] = "EBADF"
	process["socket"] = "EINVAL"
	return process, vcpu
}

// TestJail has the daemon try what it must not when it has started, on a thread like all and on one of a vCPU.
func TestJail(t *testing.T) {
	out, c, cmd, log := startTrying(t, "jail")
	process, vcpu := wantTried()
	r := out.Report
	if _, err := os.Stat("/dev/kvm"); err != nil {
		process["open /dev/kvm"] = "ENOENT"
	}
	if r.Landlock == 0 { // the kernel lacks it: what it would have refused may be anything
		for name, want := range process {
			if want == "EACCES" {
				delete(process, name)
				delete(out.Process, name)
			}
		}
	}
	if !r.Network {
		process["connect TCP"] = out.Process["connect TCP"]
	}
	if !r.Seccomp {
		t.Fatalf("this kernel has no seccomp filters: %+v", r)
	}
	if diff := cmp.Diff(process, out.Process); diff != "" {
		t.Errorf("on any thread (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(vcpu, out.VCPU); diff != "" {
		t.Errorf("on a vCPU's thread (-want +got):\n%s", diff)
	}
	g, err := c.Guest(patience.Context(t))
	if err != nil {
		t.Fatalf("%v; its log:\n%s", err, log)
	}
	want := &api.Jail{Confined: true, User: os.Geteuid(), Group: os.Getegid(), Landlock: r.Landlock, Network: r.Network, Seccomp: true, Missing: r.Missing}
	if diff := cmp.Diff(want, g.Jail); diff != "" {
		t.Errorf("jail of the status (-want +got):\n%s", diff)
	}
	threads, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "task/*/status"))
	if err != nil || len(threads) < 3 {
		t.Fatalf("threads %v, %v", threads, err)
	}
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		for _, want := range []string{"\nNoNewPrivs:\t1\n", "\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n", "\nSeccomp:\t2\n"} {
			if !bytes.Contains(b, []byte(want)) {
				t.Errorf("%s has not %q:\n%s", path, want, b)
			}
		}
		if os.Geteuid() == 0 && !bytes.Contains(b, []byte("\nCapBnd:\t0000000000000000\n")) {
			t.Errorf("%s has a bounding set:\n%s", path, b)
		}
	}
	endTrying(t, cmd, log)
}

// TestNoJail: what the jail refuses is not refused without it, so that TestJail tests something.
func TestNoJail(t *testing.T) {
	out, _, cmd, log := startTrying(t, "free")
	process, _ := wantTried()
	for name, got := range out.Process {
		switch name {
		case "memory of process 1", "open its own", "new VM", "run a VM", "socket", "open /dev/kvm":
			continue // up to the machine, or the same
		case "bpf", "kexec_load", "packets", "signal others", "read a process":
			if os.Geteuid() != 0 {
				continue
			}
		}
		if got == process[name] {
			t.Errorf("%s: %q, as in the jail", name, got)
		}
	}
	endTrying(t, cmd, log)
}

// TestJailUser: root's daemon becomes the user that it was given, who has its sockets and the folder of its state; others cannot become
// anybody.
func TestJailUser(t *testing.T) {
	const who = 65533 // nobody has it
	if os.Geteuid() != 0 {
		if code, log := runFake("--socket", filepath.Join(t.TempDir(), "s"), "--user", "65533:65533"); code != 2 || !strings.Contains(log, "only root can become another user") {
			t.Errorf("exit status %d, %s", code, log)
		}
		return
	}
	out, c, cmd, log := startTrying(t, "jail", "--user", "65533:65533")
	process, vcpu := wantTried()
	if out.Report.User != who || out.Report.Group != who {
		t.Errorf("user %d, group %d", out.Report.User, out.Report.Group)
	}
	for _, name := range []string{"raise ids", "exec", "open its own"} {
		if out.Process[name] != process[name] || out.VCPU[name] != vcpu[name] {
			t.Errorf("%s: %q and %q, want %q and %q", name, out.Process[name], out.VCPU[name], process[name], vcpu[name])
		}
	}
	g, err := c.Guest(patience.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if g.Jail.User != who {
		t.Errorf("the status has user %d", g.Jail.User)
	}
	if _, err := c.Daemon(patience.Context(t)); err != nil { // of /proc/self
		t.Error(err)
	}
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nUid:\t65533\t65533\t65533\t65533\n", "\nGid:\t65533\t65533\t65533\t65533\n", "\nGroups:\t \n"} {
		if !bytes.Contains(b, []byte(want)) {
			t.Errorf("the process's status has not %q:\n%s", want, b)
		}
	}
	endTrying(t, cmd, log)
}
