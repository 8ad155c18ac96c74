package bench

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/daemon"
)

// bootSector calls a function at 0x7c10 for ever, in real mode: a guest that
// needs no boot loader.
func bootSector() []byte {
	s := make([]byte, 512)
	copy(s, []byte{
		0xfa,             // 7c00 cli
		0xbf, 0x01, 0x00, // 7c01 mov di, 1
		0xbe, 0x02, 0x00, // 7c04 mov si, 2
		0xe8, 0x06, 0x00, // 7c07 call 7c10
		0xeb, 0xfb, //       7c0a jmp 7c07
	})
	copy(s[0x10:], []byte{0x89, 0xf8, 0x01, 0xf0, 0xc3}) // mov ax, di; add ax, si; ret
	s[510], s[511] = 0x55, 0xaa
	return s
}

const bootFunction = 0x7c10

// ownStub is gdbPeer for the protocol as guestprobed speaks it, with the built-in guest.
func ownStub(ctx context.Context, runs, hits int) Peer {
	p := Peer{Name: "gdb", What: "breakpoint through guestprobed's gdb socket: stop, read registers, step, continue"}
	if err := ownStubOf(ctx, &p, runs, hits); err != nil {
		p.Unavailable = err.Error()
	}
	return p
}

func ownStubOf(ctx context.Context, p *Peer, runs, hits int) error {
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		return err
	}
	fn, err := img.Lookup("user_hot")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "guestprobe-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	var log bytes.Buffer
	end, err := daemon.Start(ctx, []string{"--socket", socket, "--log-level", "warn"}, &log, os.Getenv, nil)
	if err != nil {
		return fmt.Errorf("guestprobed did not start: %w: %s", err, log.String())
	}
	defer end()
	conn, err := net.Dial("unix", socket+api.GDBSuffix)
	if err != nil {
		return err
	}
	defer conn.Close()
	c, err := dialRSP(conn)
	if err != nil {
		return err
	}
	return c.breakpoints(p, uint64(fn.Addr), runs, hits)
}

// gdbPeer times what a debugger script does at a breakpoint under QEMU (TCG):
// stop, read the registers, step off, go on. The client is our own and does
// nothing else, so the figure is the least that a scripted gdb can cost.
func gdbPeer(ctx context.Context, runs, hits int) Peer {
	p := Peer{Name: "qemu-gdbstub", What: "breakpoint through QEMU's gdb stub (TCG): stop, read registers, step, continue"}
	if err := gdbStub(ctx, &p, runs, hits); err != nil {
		p.Unavailable = err.Error()
	}
	return p
}

func gdbStub(ctx context.Context, p *Peer, runs, hits int) error {
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return fmt.Errorf("qemu-system-x86_64 is not installed")
	}
	dir, err := os.MkdirTemp("", "guestprobe-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	disk, socket := filepath.Join(dir, "disk"), filepath.Join(dir, "gdb")
	if err := os.WriteFile(disk, bootSector(), 0o644); err != nil {
		return err
	}
	// The listener is ours and QEMU connects to it: no waiting for a server.
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, qemu, "-accel", "tcg", "-m", "16", "-nodefaults", "-no-user-config", "-display", "none", "-S",
		"-drive", "file="+disk+",format=raw,if=ide", "-chardev", "socket,id=gdb,path="+socket, "-gdb", "chardev:gdb")
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { cancel(); cmd.Wait() }()
	l.(*net.UnixListener).SetDeadline(time.Now().Add(20 * time.Second))
	conn, err := l.Accept()
	if err != nil {
		return fmt.Errorf("qemu did not connect to its gdb socket: %w", err)
	}
	defer conn.Close()
	c, err := dialRSP(conn)
	if err != nil {
		return err
	}
	return c.breakpoints(p, bootFunction, runs, hits)
}

// breakpoints times what both stubs do at a breakpoint.
func (c *rsp) breakpoints(p *Peer, addr uint64, runs, hits int) error {
	if _, err := c.call(fmt.Sprintf("Z0,%x,1", addr), "OK"); err != nil {
		return err
	}
	if _, err := c.call("c", "T05"); err != nil { // the first hit, behind the boot
		return err
	}
	var samples []float64
	for range runs {
		start := time.Now()
		for range hits {
			for _, step := range [][2]string{{"g", ""}, {"s", "T05"}, {"c", "T05"}} {
				if _, err := c.call(step[0], step[1]); err != nil {
					return err
				}
			}
		}
		samples = append(samples, nsPer(time.Since(start), uint64(hits)))
	}
	s := spread(samples)
	p.NsPerHit, p.Hits = &s, uint64(runs*hits)
	return nil
}
