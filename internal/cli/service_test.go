package cli

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// manager simulates the service manager of one guestprobed.
type manager struct {
	*testing.T
	dir      string
	notify   *net.UnixConn
	listener *net.UnixListener
	cmd      *exec.Cmd
	log      *os.File
	said     []string
}

// manage returns a manager with a socket and a configuration.
func manage(t *testing.T, config string) *manager {
	t.Helper()
	m := &manager{T: t, dir: t.TempDir()}
	var err error
	if m.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(m.dir, "notify"), Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.notify.Close() })
	if m.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(m.dir, "s"), Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.listener.Close() })
	m.configure(config)
	return m
}

func (m *manager) configure(text string) {
	m.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, "a.toml"), []byte(text), 0o600); err != nil {
		m.Fatal(err)
	}
}

// start starts the daemon.
func (m *manager) start() {
	m.Helper()
	f, err := m.listener.File()
	if err != nil {
		m.Fatal(err)
	}
	defer f.Close()
	if m.log, err = os.Create(filepath.Join(m.dir, "log")); err != nil {
		m.Fatal(err)
	}
	defer m.log.Close()
	m.cmd = exec.Command("guestprobed", "--config", "a.toml")
	m.cmd.Dir, m.cmd.ExtraFiles, m.cmd.Stdout, m.cmd.Stderr = m.dir, []*os.File{f}, m.log, m.log
	m.cmd.Env = append(os.Environ(), "LISTEN_FDS=1", "NOTIFY_SOCKET="+filepath.Join(m.dir, "notify"), "WATCHDOG_USEC=200000")
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		if m.cmd.ProcessState == nil {
			_ = m.cmd.Process.Kill()
			_ = m.cmd.Wait()
		}
	})
}

// hear waits until the daemon's notification matches.
func (m *manager) hear(pattern string) {
	m.Helper()
	re := regexp.MustCompile("(?s)^" + pattern + "$")
	ctx := patience.Context(m.T)
	defer context.AfterFunc(ctx, func() { _ = m.notify.SetReadDeadline(time.Now()) })()
	b := make([]byte, 4096)
	for {
		n, err := m.notify.Read(b)
		if err != nil {
			m.Fatalf("%v, while waiting for %q; said was:\n%s\nlog:\n%s", err, pattern, strings.Join(m.said, "\n"), m.readLog())
		}
		m.said = append(m.said, string(b[:n]))
		if re.Match(b[:n]) {
			return
		}
	}
}

func (m *manager) readLog() string {
	b, err := os.ReadFile(filepath.Join(m.dir, "log"))
	if err != nil {
		m.Fatal(err)
	}
	return string(b)
}

// runCommand runs guestprobe with the daemon's socket.
func (m *manager) runCommand(args ...string) string {
	m.Helper()
	cmd := exec.Command("guestprobe", append([]string{"--socket", filepath.Join(m.dir, "s")}, args...)...)
	cmd.Env = append(os.Environ(), answerTimeEnv+"=1m") // a busy machine is slow
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

func (m *manager) signal(s os.Signal) {
	m.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.Fatal(err)
	}
}

// logs checks that the log contains a line.
func (m *manager) logs(pattern string) {
	m.Helper()
	if text := m.readLog(); !regexp.MustCompile(pattern).MatchString(text) {
		m.Errorf("the log has no %q:\n%s", pattern, text)
	}
}

// TestServiceManager: the daemon uses the given socket, notifies its manager of its state and of being alive, reloads its configuration,
// and does not remove the socket.
func TestServiceManager(t *testing.T) {
	kvmtest.Require(t)
	m := manage(t, "probe = ['p:a vfs_read']\n")
	// Listing daemons does not start one.
	if got := m.runCommand("ps", "--format", "{{.Name}} {{.State}}"); !strings.Contains("\n"+got, "\ns waits\n") {
		t.Errorf("ps before the daemon: %q", got)
	}
	m.start()
	// A client that connects before the daemon is ready waits for it.
	if got := m.runCommand("list", "--quiet"); got != "kprobes/a\n" {
		t.Errorf("list: %q", got)
	}
	m.hear("READY=1\nSTATUS=guest [a-z]+, 1 probe")
	m.hear("WATCHDOG=1")
	if got := m.runCommand("ps", "--format", "{{.Name}} {{.PID}} {{.State}}"); !strings.Contains("\n"+got, fmt.Sprintf("\ns %d answers\n", m.cmd.Process.Pid)) {
		t.Errorf("ps: %q", got)
	}
	m.runCommand("attach", "p:b do_fork")
	m.hear("STATUS=guest running, 2 probes")
	m.runCommand("run", "--detach", "reads", "-e", "kprobe:vfs_read { @ = count(); }")
	m.hear("STATUS=guest running, 3 probes, 1 script")

	m.configure("probe = ['p:a vfs_read']\nlog-level = 'debug'\nmax-connections = 100\nvcpus = 2\n")
	m.signal(syscall.SIGHUP)
	m.hear("RELOADING=1\nMONOTONIC_USEC=[0-9]+")
	m.hear("READY=1")
	m.logs(`msg=reloaded name=log-level was=info is=debug`)
	m.logs(`msg=reloaded name=max-connections was=512 is=100`)
	m.logs(`level=WARN msg="a change of the configuration waits for the next start" name=vcpus is=1 "?will be"?=2`)
	// The log shows a reload's changes at the old and at the new log level.
	m.configure("probe = ['p:a vfs_read']\nlog-level = 'error'\nmax-connections = 110\nvcpus = 2\n")
	m.signal(syscall.SIGHUP)
	m.hear("RELOADING=1\n.*")
	m.hear("READY=1")
	m.logs(`msg=reloaded name=log-level was=debug is=error`)
	m.logs(`msg=reloaded name=max-connections was=100 is=110`)
	m.configure("probe = ['p:a vfs_read']\nlog-level = 'error'\nmax-connections = 120\nvcpus = 3\n")
	m.signal(syscall.SIGHUP)
	m.hear("RELOADING=1\n.*")
	m.hear("READY=1")
	m.logs(`msg=reloaded name=max-connections was=110 is=120`)
	m.logs(`msg="a change of the configuration waits for the next start" name=vcpus is=1 "?will be"?=3`)
	m.configure("probe = ['p:a vfs_read']\nlog-level = 'info'\nmax-connections = 130\n")
	m.signal(syscall.SIGHUP)
	m.hear("RELOADING=1\n.*")
	m.hear("READY=1")
	m.logs(`msg=reloaded name=log-level was=error is=info`)
	m.logs(`msg=reloaded name=max-connections was=120 is=130`)
	m.configure("log-levle = 'warn'\n")
	m.signal(syscall.SIGHUP)
	m.hear("RELOADING=1\n.*")
	m.hear("READY=1")
	m.logs(`level=ERROR msg="the configuration is not reloaded: everything stays as it was" err="a.toml:1: no option \\"log-levle\\": did you mean log-level\?"`)

	m.signal(syscall.SIGTERM)
	m.hear("STOPPING=1\nSTATUS=stopping; lost of what clients have attached: 2")
	if err := m.cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, m.readLog())
	}
	m.logs(`msg="what clients have attached goes with the daemon: --state DIR keeps it" number=2 first="\[kprobes/b script reads\]"`)

	// The manager restarts the daemon with the same socket. With --state it keeps attachments.
	m.configure("state = 'kept'\n")
	m.start()
	m.hear("READY=1\nSTATUS=.*")
	m.runCommand("attach", "p:c vfs_read")
	m.signal(syscall.SIGTERM)
	m.hear("STOPPING=1\nSTATUS=stopping")
	if err := m.cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, m.readLog())
	}
	m.start()
	m.hear("READY=1\nSTATUS=guest [a-z]+, 1 probe")
	m.runCommand("list", "c")

	// If --socket is given too, it must be the same socket.
	var said bytes.Buffer
	other := exec.Command("guestprobed", "--socket", filepath.Join(m.dir, "other"))
	f, err := m.listener.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	other.Env, other.Stderr, other.ExtraFiles = append(os.Environ(), "LISTEN_FDS=1"), &said, []*os.File{f}
	if err := other.Run(); err == nil || !strings.HasPrefix(said.String(), fmt.Sprintf("guestprobed: --socket %s: the service manager gives %s; leave it out\n", filepath.Join(m.dir, "other"), filepath.Join(m.dir, "s"))) {
		t.Errorf("%v: %s", err, &said)
	}
}
