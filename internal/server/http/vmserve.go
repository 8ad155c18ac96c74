package http

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/kvm/foreign"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// serveVM is the life of a daemon that serves the guest of another VMM, until ctx or the VM ends.
func serveVM(ctx context.Context, o options, log *slog.Logger, logLost func() uint64, sock *socket, enter jailer, finish func(*server), ready func(*server)) (err error) {
	s, g, prog, err := openVM(o.lookAt, o, log, logLost)
	if err != nil {
		return err
	}
	finish(s)
	var gone atomic.Bool
	defer func() {
		cctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		left := errors.Join(s.probes.Close(), s.guest.Close(cctx), g.Close())
		if gone.Load() { // with all that was to be put back
			left = nil
		}
		err = errors.Join(err, left)
		log.Info("stopped")
	}()
	log.Info("guest of another VMM", "vm", s.opt.vm, "image", s.opt.imageName(), "vcpus", s.opt.vcpus, "memory", formatSize(s.opt.memory))
	s.begin = func(debuggers *socket) error {
		if g.Way == foreign.Cooperative {
			return s.confine(enter, sock, debuggers, prog)
		}
		// Reading a process takes capabilities, and files of /proc, all the time.
		if s.jail = new(api.Jail); o.requireJail || o.user.asked != "" {
			return command.Usagef("--vm %s: this guest is read by ptrace, which takes capabilities: leave out --require-jail and --user, or start QEMU with a QMP socket and its RAM in a file (docs/vms.md)", o.lookAt.Name)
		}
		log.Warn("not confined: a guest that is read by ptrace takes capabilities")
		return nil
	}
	ended, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		if g.AwaitEnd(ended) {
			gone.Store(true)
			cancel(errors.New("the VMM has ended"))
		}
	})
	defer func() {
		cancel(nil)
		watch.Wait()
	}()
	return s.run(ended, sock, func() { ready(s) })
}
