package http

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// bccGuest is how the test's own program is called in the guest of TestLinuxTools.
const bccGuest = "/bccguest"

func init() {
	if os.Args[0] != bccGuest {
		return
	}
	if err := serveLoads(); err != nil {
		fmt.Println(err)
	}
	os.Exit(1)
}

// load is what a guest does for a tool. It says what it has done by want, as the tool is to
// see it: what it tells is what the guest's own system calls have returned.
type load struct {
	said []string
	say  func(line string) // at once
}

func (l *load) want(format string, args ...any) {
	l.said = append(l.said, fmt.Sprintf(format, args...))
}

// exitOnError ends the load when something went wrong.
func exitOnError(err error) {
	if err != nil {
		panic(err)
	}
}

// ok is no for what returns a value as well.
func ok[T any](v T, err error) T {
	exitOnError(err)
	return v
}

// serveLoads reads names of tools, one a line, does each one's load, and says what that was. It
// reads and writes by readv and writev, which are not what the tools count.
func serveLoads() error {
	runtime.LockOSThread()
	// It was not there before: the server of NATS, which is in this program, too, would have found itself in it, and read it each
	// second, which tools count.
	exitOnError(unix.Mount("proc", "/proc", "proc", 0, ""))
	exitOnError(unix.Mkdir("/tmp/load", 0o755))
	exitOnError(unix.Chdir("/tmp/load"))
	say := func(lines ...string) {
		_, err := unix.Writev(1, [][]byte{[]byte(strings.Join(lines, "\n") + "\n")})
		exitOnError(err)
	}
	say(fmt.Sprintf("PID %d", os.Getpid()))
	loads := map[string]func(l *load){}
	for _, tool := range bccTools {
		loads[tool.name] = tool.load
	}
	for _, tool := range btTools {
		loads[tool.name+".bt"] = tool.load
		loads[tool.name+".bt before"] = tool.before
	}
	for {
		name, err := readRequest()
		if err != nil {
			return err
		}
		l := load{say: func(line string) { say(line) }}
		func() {
			defer func() {
				if r := recover(); r != nil {
					l.want("%v", r)
				}
			}()
			loads[name](&l)
		}()
		for i := range l.said {
			l.said[i] = "WANT " + l.said[i]
		}
		say(append(l.said, "DONE "+name)...)
	}
}

// pending has been read, and belongs to the next requests.
var pending []byte

// readRequest reads a line.
func readRequest() (string, error) {
	for {
		line, rest, whole := bytes.Cut(pending, []byte("\n"))
		if whole {
			pending = rest
			return string(line), nil
		}
		b := make([]byte, 100)
		n, err := unix.Readv(0, [][]byte{b})
		if n <= 0 || err != nil {
			return "", fmt.Errorf("readv: %d, %w", n, err)
		}
		pending = append(pending, b[:n]...)
	}
}

// countCalls counts the calls of functions by the kernel's own kprobes while f runs.
func countCalls(f func(), functions ...string) []string {
	const dir = "/sys/kernel/tracing/"
	var events []byte
	for _, name := range functions {
		events = fmt.Appendf(events, "p:own/%s %s\n", name, name)
	}
	exitOnError(os.WriteFile(dir+"kprobe_events", events, 0))
	exitOnError(os.WriteFile(dir+"events/own/enable", []byte("1"), 0))
	f()
	exitOnError(os.WriteFile(dir+"events/own/enable", []byte("0"), 0))
	profile := strings.Fields(string(ok(os.ReadFile(dir + "kprobe_profile"))))
	counts := make([]string, len(functions))
	for i := 0; i+2 < len(profile); i += 3 { // name, hits, misses
		for j, name := range functions {
			if profile[i] == name {
				counts[j] = profile[i+1]
			}
		}
	}
	exitOnError(os.WriteFile(dir+"kprobe_events", []byte("\n"), 0))
	return counts
}

var loopback = [4]byte{127, 0, 0, 1}

// port returns the port that a socket is bound to.
func port(fd int) int {
	switch a := ok(unix.Getsockname(fd)).(type) {
	case *unix.SockaddrInet4:
		return a.Port
	case *unix.SockaddrInet6:
		return a.Port
	}
	return 0
}

// listenLoopback returns a socket that listens at a free port of the loopback.
func listenLoopback(backlog int) (fd, at int) {
	fd = ok(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
	exitOnError(unix.Bind(fd, &unix.SockaddrInet4{Addr: loopback}))
	exitOnError(unix.Listen(fd, backlog))
	return fd, port(fd)
}

// dial connects to a port of the loopback, from the port that it returns.
func dial(to int) (fd, from int) {
	fd = ok(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
	exitOnError(unix.Connect(fd, &unix.SockaddrInet4{Port: to, Addr: loopback}))
	return fd, port(fd)
}

// connectPair returns both ends of a connection.
func connectPair(listener, at int) (client, server, from int) {
	client, from = dial(at)
	server, _, err := unix.Accept(listener)
	exitOnError(err)
	return client, server, from
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		exitOnError(unix.Close(fd))
	}
}

// file makes a file, and returns it open for reading and writing.
func file(name string) int {
	return ok(unix.Open(name, unix.O_CREAT|unix.O_RDWR|unix.O_TRUNC, 0o644))
}

// errno is what the system call with this error has returned to the kernel's caller.
func errno(err error) int {
	if e, is := err.(syscall.Errno); is {
		return -int(e)
	}
	exitOnError(err)
	return 0
}
