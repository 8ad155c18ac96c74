package bench

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/internal/cli/child"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// loop calls the function that follows it forever, without interrupts. Nothing
// else runs between two hits, so the time is the debugger's. The bytes are the
// same instructions in real mode, where QEMU's guest needs no boot loader, and
// in 64-bit mode, except for the width of the call's displacement.
func loop(call ...byte) (code []byte, function uint64) {
	code = append([]byte{0xfa}, call...)                                 // cli; call function
	code = append(code, 0xeb, byte(-len(call)-2), 0x90)                  // jmp to the call; nop
	return append(code, 0x89, 0xf8, 0x01, 0xf0, 0xc3), uint64(len(code)) // function: mov (e)di, (e)ax; add (e)si, (e)ax; ret
}

// bootSector is loop for a machine that starts in real mode, and where its function is.
func bootSector() ([]byte, uint64) {
	code, function := loop(0xe8, 0x03, 0x00)
	s := make([]byte, 512)
	copy(s, code)
	s[510], s[511] = 0x55, 0xaa
	return s, 0x7c00 + function
}

// loopGuest is loop for guestprobed, which has a stack for it, and where its function is.
func loopGuest() ([]byte, uint64) {
	const at = 0xffffffff80200000
	code, function := loop(0xe8, 0x03, 0x00, 0x00, 0x00)
	f := elfbuild.File{Entry: at,
		Segments: []elfbuild.Segment{{Section: ".text", VAddr: at, PAddr: 0x200000, Flags: elf.PF_R | elf.PF_X, Data: code}},
		Symbols:  []elfbuild.Symbol{{Name: "function", Addr: at + guest.GVA(function), Size: uint64(len(code)) - function, Type: elf.STT_FUNC}}}
	return f.Bytes(), at + function
}

// roundTrips measures the least time of any stub for the three packets of a
// breakpoint: a process echoes the packets over a unix socket, as fast as the
// kernel permits for a program in C.
func roundTrips(ctx context.Context, runs, hits int) Peer {
	p := Peer{Name: "sockets", What: "three round trips over a unix socket to another process (cat) that does nothing: of each stub's time"}
	if err := measureEchoes(ctx, &p, runs, hits); err != nil {
		p.Unavailable = err.Error()
	}
	return p
}

func measureEchoes(ctx context.Context, p *Peer, runs, hits int) error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "socket"), os.NewFile(uintptr(ends[1]), "socket")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return err
	}
	defer conn.Close()
	cmd := exec.CommandContext(ctx, "cat")
	cmd.Stdin, cmd.Stdout = theirs, theirs
	if err := cmd.Start(); err != nil {
		return err
	}
	theirs.Close()
	defer cmd.Wait()
	defer conn.Close()
	c := &rsp{conn: conn, in: bufio.NewReader(conn)}
	return c.time(p, runs, hits, []exchange{{"g", "g"}, {"s", "s"}, {"c", "c"}})
}

// measureStub is gdbPeer for the protocol as guestprobed speaks it, with the same loop. The daemon is the program at a path, or
// where that is "" in this process, where packets need no change of process.
func measureStub(ctx context.Context, program string, runs, hits int) Peer {
	p := Peer{Name: "gdb", What: "breakpoint through guestprobed's gdb socket: stop, read registers, step, continue"}
	if program == "" {
		p.What += " (in one process)"
	}
	if err := measureStubOf(ctx, &p, program, runs, hits); err != nil {
		p.Unavailable = err.Error()
	}
	return p
}

func measureStubOf(ctx context.Context, p *Peer, program string, runs, hits int) error {
	dir, err := os.MkdirTemp("", "guestprobe-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	image, function := loopGuest()
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "guest")
	if err := os.WriteFile(file, image, 0o644); err != nil {
		return err
	}
	var log bytes.Buffer
	args := []string{"--socket", socket, "--log-level", "warn", "--guest", file}
	if program == "" {
		end, err := daemon.Start(ctx, args, &log, os.Getenv, nil)
		if err != nil {
			return fmt.Errorf("guestprobed did not start: %w: %s", err, log.String())
		}
		defer end()
	} else {
		d, err := child.Start(ctx, child.Options{Program: program, Args: args, Output: &log})
		if d != nil {
			defer d.Kill()
		}
		if err != nil {
			return fmt.Errorf("%s: %w: %s", program, err, log.String())
		}
	}
	conn, err := net.Dial("unix", socket+api.GDBSuffix)
	if err != nil {
		return err
	}
	defer conn.Close()
	c, err := dialRSP(conn)
	if err != nil {
		return err
	}
	return c.breakpoints(p, function, runs, hits)
}

// gdbPeer times the work of a debugger script at a breakpoint under QEMU (TCG):
// stop, read the registers, step off, continue. The client is our own and does
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
	sector, function := bootSector()
	if err := os.WriteFile(disk, sector, 0o644); err != nil {
		return err
	}
	// The listener is ours and QEMU connects to it, so we need not wait for a
	// server.
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
	return c.breakpoints(p, function, runs, hits)
}

// breakpoints times the work of both stubs at a breakpoint.
func (c *rsp) breakpoints(p *Peer, addr uint64, runs, hits int) error {
	if _, err := c.call(fmt.Sprintf("Z0,%x,1", addr), "OK"); err != nil {
		return err
	}
	if _, err := c.call("c", "T05"); err != nil { // the first hit, after the boot
		return err
	}
	return c.time(p, runs, hits, []exchange{{"g", ""}, {"s", "T05"}, {"c", "T05"}})
}

// exchange is a packet, and how its answer begins.
type exchange struct{ packet, answer string }

// time times the packets of one hit, all of them and each.
func (c *rsp) time(p *Peer, runs, hits int, packets []exchange) error {
	samples, each := make([]float64, runs), make([][]float64, len(packets))
	for run := range samples {
		for range hits {
			for i, x := range packets {
				start := time.Now()
				if _, err := c.call(x.packet, x.answer); err != nil {
					return err
				}
				took := nsPer(time.Since(start), 1)
				each[i] = append(each[i], took)
				samples[run] += took / float64(hits)
			}
		}
	}
	s := spread(samples)
	p.NsPerHit, p.Hits = &s, uint64(runs*hits)
	for i, x := range packets {
		p.Packets = append(p.Packets, Packet{x.packet, spread(each[i]).Median})
	}
	return nil
}
