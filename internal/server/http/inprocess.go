package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/command"
)

// Start runs guestprobed with these arguments in this process. It returns when
// the daemon serves clients, or cannot do so: the error has the status with
// which it has ended, and the log the reason. end ends the daemon, and fails if
// its status is not 0. The end of ctx does not end it.
func Start(ctx context.Context, args []string, log io.Writer, getenv func(string) string, monitor Monitor) (end func() error, err error) {
	ready, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	// A descriptor has one owner: this one will be the daemon's.
	fd, err := unix.FcntlInt(tell.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	tell.Close()
	if err != nil {
		return nil, err
	}
	args = append(args, "--ready-fd", strconv.Itoa(fd))
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	exited := make(chan int, 1)
	go func() {
		exited <- Program(monitor).Run(run, command.Env{Args: args, Stdout: log, Stderr: log, Getenv: getenv})
	}()
	end = func() error {
		cancel()
		if status := <-exited; status != 0 {
			return fmt.Errorf("exit status %d", status)
		}
		return nil
	}
	// Closing it also closes the pipe.
	if line, _ := io.ReadAll(ready); len(line) > 0 {
		return end, nil
	}
	if err := end(); err != nil {
		return nil, err
	}
	return nil, errors.New("it has ended before it served clients")
}
