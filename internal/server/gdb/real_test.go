package gdb

import (
	"context"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// TestRealGDB: GDB understands what it is told.
func TestRealGDB(t *testing.T) {
	gdb := kvmtest.RequireCommand(t, "gdb")
	f := newFake()
	f.regs[0].CR0 = 0x80050033
	f.regs[0].YMMH[1] = [16]byte{1, 2, 3}
	f.regs[0].X87[0] = [10]byte{7: 0x80, 8: 0xff, 9: 0x3f} // 1.0
	f.regs[0].ZMMH[31][0], f.regs[0].PKRU = 0x5a, 0x12345678
	path := filepath.Join(t.TempDir(), "gdb")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			err = Serve(context.Background(), conn, f, slog.New(slog.DiscardHandler))
		}
		served <- err
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	args := []string{"--nx", "--batch"}
	for _, line := range []string{
		"set pagination off", "set confirm off", "set debuginfod enabled off", "target remote " + path,
		"info threads", "info registers rip eflags cr0 r8 fs_base", "p $ymm1.v32_int8[16]", "p $st0", "p/x $zmm31.v8_int64[4]", "p/x $pkru",
		"x/4xb 0x10000", "set var *(char*)0x10001 = 0x55", "x/2xb 0x10000", "x/1xb 0x90000",
		"p/x $rax = 0x1234", "p/x $rax", "find 0x10000, +0x1000, (char)0x55",
		"hbreak *0x10010", "continue", "stepi", "thread 2", "p/x $rip", "monitor hello", "watch *(int*)0x10100", "rwatch *(int*)0x10100",
		"detach",
	} {
		args = append(args, "-ex", line)
	}
	cmd := exec.CommandContext(ctx, gdb, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("gdb: %v", err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	got := string(out)
	for _, want := range []string{
		`* 1    Thread 1 "vCPU 0" (paused <0>) 0x0000000000010000 in ?? ()`,
		`  2    Thread 2 "vCPU 1" (paused <1>) 0x0000000000010100 in ?? ()`,
		"rip            0x10000             0x10000\n",
		"eflags         0x2                 [ ]\n",
		"cr0            0x80050033          [ PE MP ET NE WP AM PG ]\n",
		"r8             0x8888888888888888  -8608480567731124088\n",
		"fs_base        0x0                 0\n",
		"$1 = 1\n$2 = 1\n$3 = 0x5a\n$4 = 0x12345678\n",
		"0x10000:\t0x00\t0x07\t0x0e\t0x15\n0x10000:\t0x00\t0x55\n0x90000:\tCannot access memory at address 0x90000\n",
		"$5 = 0x1234\n$6 = 0x1234\n0x10001\n",
		"Hardware assisted breakpoint 1 at 0x10010\n",
		`Thread 1 "vCPU 0" hit Breakpoint 1, 0x0000000000010010 in ?? ()` + "\n0x0000000000010011 in ?? ()\n",
		"$7 = 0x1010f\nsaid hello\n",
		"[Inferior 1 (Remote target) detached]\n",
	} {
		_, rest, ok := strings.Cut(got, want) // one after the other
		if !ok {
			t.Fatalf("gdb does not say %q; it says\n%s", want, out)
		}
		got = rest
	}
}
