package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/jail"
	"github.com/guestprobe/guestprobe/internal/server/saved"
	"github.com/guestprobe/guestprobe/internal/server/service"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// exitPermission is guestprobed's exit status when /dev/kvm or the socket may not
// be used.
const exitPermission = 5

// closeTime is how long the guest may take to end when the daemon stops.
const closeTime = 2 * time.Second

// Main is guestprobed: it runs until SIGTERM, SIGINT or SIGHUP and returns the
// exit status. A nil monitor is for programs without the command line.
func Main(monitor Monitor) int {
	// A reader of our log that goes away must not end the guest: without this
	// the runtime dies of SIGPIPE on writes to descriptors 1 and 2 (os/signal).
	signal.Ignore(syscall.SIGPIPE)
	// After the first signal the handler stays: a second one must not cut the
	// shutdown short.
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return commandLine(newMachineGuest, monitor, hangups, jail.Enter).Run(ctx, command.Process())
}

// guestMaker creates a guest, paused before its first instruction.
type guestMaker func(o *options, p bootable, log *slog.Logger) (Guest, error)

// gcPercent keeps the memory of tens of thousands of probes small: it would otherwise double when as many come or go at once. Hits make no garbage.
const gcPercent = 15

// Program describes guestprobed's command line. It runs until its context ends.
// It does not confine the process, because another program owns it.
func Program(monitor Monitor) command.Program { return commandLine(newMachineGuest, monitor, nil, nil) }

func commandLine(newGuest guestMaker, monitor Monitor, hangups <-chan os.Signal, enter jailer) command.Program {
	o := defaultOptions()
	return command.Program{
		Spec: command.Spec{
			Use:   "guestprobed",
			Short: "Boot a guest and serve its probes, or serve the guest of another VMM",
			Long: `guestprobed boots one x86-64 guest under KVM and serves its state, probes and
events as HTTP and JSON on a unix socket (docs/openapi.yaml). guestprobe is its
client.

With --vm it boots no guest, and serves the guest of another VMM on this host, read-only
(docs/vms.md); it ends with that VMM.

SIGTERM and SIGINT take every probe out, restore the guest's text, end all streams
and stop the guest, in a few seconds whatever clients do; the exit status is then 0.
So does SIGHUP without --config. With --config, SIGHUP makes the daemon read the file again:
log level and limits change, and the log names the settings that wait for the next start.
docs/service.md describes this, and the protocol with service managers.

Exit status: 0 stopped by a signal; 1 failed, or the guest's text differs from its image at
the end, which the guest may have done itself; 2 bad flags or --config, or an invalid --probe
or --script; 5 no permission for /dev/kvm or the socket.`,
			Example: `  guestprobed --vcpus 2 --socket /tmp/gp.sock
  guestprobed --kernel /boot/vmlinuz --initrd /boot/initrd.img --append console=ttyS0
  guestprobed --guest kernel.elf --memory 128M --paused --probe 'p:init start_kernel'
  guestprobed --vm web --socket /tmp/web.sock`,
			Plain: true,
			Flags: o.flags,
			Args: func(args []string) error {
				if len(args) > 0 {
					return command.Usagef("unexpected argument %q: --guest FILE boots an ELF file, --kernel FILE a Linux kernel", args[0])
				}
				return nil
			},
			Cures: map[string]string{"--image": "--guest FILE boots an ELF file, --kernel FILE a Linux kernel", "--elf": "--guest FILE boots an ELF file",
				"--web": "--web-listen ADDRESS:PORT serves the page there", "--cpus": "--vcpus N", "--smp": "--vcpus N", "-m": "--memory SIZE", "--mem": "--memory SIZE"},
			Run: func(ctx context.Context, r *command.Run) error {
				if err := o.configure(); err != nil {
					return err
				}
				if o.checkConfig {
					return o.checkFiles(r)
				}
				command.PaceGarbage(gcPercent)
				return serve(ctx, r.Env, o, newGuest, monitor, hangups, enter)
			},
		},
		Judge: func(err error) command.Verdict {
			var wire *api.Error
			switch {
			case errors.As(err, &wire) && wire.Column != nil:
				return command.Verdict{Status: command.ExitUsage}
			case errors.Is(err, fs.ErrPermission):
				return command.Verdict{Status: exitPermission}
			}
			return command.Verdict{Status: command.ExitFailed}
		},
	}
}

// serve is the daemon's life.
func serve(ctx context.Context, env command.Env, o options, newGuest guestMaker, monitor Monitor, hangups <-chan os.Signal, enter jailer) (err error) {
	if err := o.checkPlaces(env.Getenv); err != nil {
		return err
	}
	log, lw, err := newLog(&o, env.Stderr)
	if err != nil {
		return o.flagError("log-file", err)
	}
	defer lw.Close()
	ready, err := openReady(o.readyFD)
	if err != nil {
		return command.Usagef("%w", err)
	}
	defer ready.Close()
	manager, err := service.FromEnv(env.Getenv)
	if err != nil {
		return err
	}
	sock, err := inheritSocket(&o, log, env.Getenv)
	if err != nil {
		return err
	}
	if sock != nil {
		defer sock.Close()
	}
	if o.socket == "" {
		path, err := defaultSocket(os.Geteuid(), env.Getenv)
		if err != nil {
			return err
		}
		o.socket = path
	}
	var snap *snapshot.Snapshot
	if o.restore != "" {
		if snap, err = readSnapshot("--restore", &o); err != nil {
			return o.flagError("restore", err)
		}
	}
	var prog bootable
	if o.lookAt.Name == "" {
		if prog, err = loadProgram(&o); err != nil {
			return err
		}
	}
	if sock == nil {
		if sock, err = listen(ctx, o.socket, o.gid, o.allowUIDs); err != nil {
			return err
		}
		defer sock.Close()
	}
	isReady := func(s *server) {
		log.Info("ready", "socket", sock.path, "pid", s.pid)
		if _, err := fmt.Fprintf(ready, "ready %s\n", sock.path); err != nil {
			log.Warn("ready descriptor", "err", err)
		}
		ready.Close()
	}
	finish := func(s *server) {
		s.monitor, s.manager, s.logLevel, s.reopenLog, s.args, s.hangups = monitor, manager, &lw.level, lw.reopen, env.Args, hangups
	}
	if o.lookAt.Name != "" {
		return serveVM(ctx, o, log, lw.LostLines, sock, enter, finish, isReady)
	}
	var kept *saved.Store
	if o.state != "" {
		if kept, err = saved.Open(o.state, o.stateUsers()...); err != nil {
			return o.flagError("state", err)
		}
		o.state = filepath.Dir(kept.Path())
		defer kept.Close()
	}
	if err := o.openCache(log); err != nil {
		return o.flagError("cache", err)
	}
	defer o.scans.Close()
	if dir := hiddenDir(sock.path); dir != "" && len(o.allowUIDs) > 0 {
		log.Warn("users of --allow-uid may not reach the socket: not everybody may pass a directory", "directory", dir)
	}
	started := time.Now()
	g, err := newGuest(&o, prog, log)
	if err != nil {
		return o.guestError(err)
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		if cerr := g.Close(cctx); cerr != nil {
			log.Error("close guest", "err", cerr)
		}
		log.Info("stopped")
	}()
	log.Info("guest created", "image", o.imageName(), "sha256", prog.sha256(), "vcpus", o.vcpus,
		"memory", formatSize(o.memory), "took", time.Since(started))
	s := newServer(log, o, g, lw.LostLines)
	finish(s)
	s.useState(kept)
	defer s.probes.Close()
	if snap != nil {
		if err := s.attachSnapshot(ctx, snap); err != nil {
			return err
		}
		s.markOrigin(api.OriginRestored)
	}
	if err := s.attachFlags(); err != nil {
		return err
	}
	if err := s.startScripts(); err != nil {
		return err
	}
	s.markOrigin(api.OriginStart)
	if kept != nil {
		if err := s.restoreState(); err != nil {
			return err
		}
	}
	s.begin = func(debuggers *socket) error {
		if err := s.confine(enter, sock, debuggers, prog); err != nil {
			return err
		}
		if o.paused {
			return nil
		}
		if err := s.resume(); err != nil {
			return fmt.Errorf("start guest: %w", err)
		}
		return nil
	}
	return s.run(ctx, sock, func() { isReady(s) })
}

// openReady returns the descriptor for the message that clients can connect, or
// a writer that discards it.
func openReady(fd int) (io.WriteCloser, error) {
	if fd < 0 {
		return nopCloser{io.Discard}, nil
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		return nil, fmt.Errorf("--ready-fd %d: %w", fd, err)
	}
	f := os.NewFile(uintptr(fd), "ready")
	if fd <= 2 {
		return nopCloser{f}, nil // the standard streams stay open
	}
	return f, nil
}

type nopCloser struct{ io.Writer }

// Close does nothing.
func (nopCloser) Close() error { return nil }
