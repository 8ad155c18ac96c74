package http

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]uint64{
		"0": 0, "1": 1, "4096": 4096, "0x1000": 4096, "1K": 1 << 10, "64M": 64 << 20, "64m": 64 << 20, "64MB": 64 << 20, "64MiB": 64 << 20,
		"2G": 2 << 30, "1T": 1 << 40, "18446744073709551615": 1<<64 - 1, "16777215T": 16777215 << 40,
	} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("%q = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "M", "-1", "1.5G", "1X", "1 M", "16777216T", "18446744073709551616", "64MBB", "B"} {
		if got, err := parseSize(bad); err == nil {
			t.Errorf("%q was accepted as %d", bad, got)
		}
	}
	for v, want := range map[uint64]string{0: "0", 1: "1", 1023: "1023", 1024: "1K", 64 << 20: "64M", 3 << 30: "3G", 1<<30 + 1: "1073741825"} {
		if got := formatSize(v); got != want {
			t.Errorf("formatSize(%d) = %s, want %s", v, got, want)
		}
	}
}

// runFake runs the daemon's command line with a guest that is not there, until
// it would serve.
func runFake(args ...string) (code int, stderr string) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // stop at once where everything is all right
	var out, errs bytes.Buffer
	p := commandLine(
		func(o *options, p bootable, log *slog.Logger) (Guest, error) {
			if o.kvm == "/missing" {
				return nil, errors.New("open /missing: no kvm")
			}
			if o.kvm == "/forbidden" {
				return nil, &os.PathError{Op: "open", Path: o.kvm, Err: os.ErrPermission}
			}
			return newFakeGuest(nopTB{}, o.vcpus), nil
		}, nil, nil, nil)
	code = p.Run(ctx, command.Env{Args: args, Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }})
	return code, errs.String()
}

// nopTB lets newFakeGuest be used outside a test's own goroutine.
type nopTB struct{ testing.TB }

func (nopTB) Helper()           {}
func (nopTB) Fatal(args ...any) { panic(args) }

func TestCommandLine(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	full := "--log-file=/dev/full"
	for _, tc := range []struct {
		name string
		args []string
		code int
		text string // in what is said
	}{
		{"fine", []string{"--socket", sock}, 0, "msg=stopped"},
		{"all flags", []string{"--socket", "unix://" + sock, "--vcpus", "2", "--memory", "32M", "--tick", "1ms", "--cmdline", "a b", "--paused",
			"--probe", "p:a schedule", "--probe", "p:b do_wait a=%di", "--allow-uid", "5", "--allow-uid", "root", "--group", "0",
			"--log-level", "debug", "--log-format", "json"}, 0, `"msg":"ready"`},
		{"help", []string{"--help"}, 0, ""},
		{"version", []string{"--version"}, 0, ""},
		{"argument", []string{"x"}, 2, `unexpected argument "x": --guest FILE boots an ELF file, --kernel FILE a Linux kernel`},
		{"unknown flag", []string{"--nope"}, 2, "unknown flag: --nope"},
		{"disk without kernel", []string{"--disk", "/x"}, 2, "--disk: goes with --kernel"},
		{"disk without file", []string{"--disk", ",ro"}, 2, `--disk ",ro": no file`},
		{"disks", strings.Fields("--kernel /k" + strings.Repeat(" --disk /x,ro", 7)), 2, "--disk: 7 disks, more than 6"},
		{"network", []string{"--kernel", "/k", "--net", "tap0"}, 2, "--net: guests have no network: there is no virtio-net, over tap or otherwise"},
		{"vcpus", []string{"--vcpus", "0"}, 2, "--vcpus 0: not in 1 to"},
		{"vcpus text", []string{"--vcpus", "two"}, 2, `--vcpus "two": not a number`},
		{"memory", []string{"--memory", "1M1"}, 2, `size "1M1": not a number`},
		{"memory odd", []string{"--memory", "4097"}, 2, "--memory 4097: not a multiple of 4K"},
		{"no memory for maps", []string{"--map-memory", "0"}, 2, "--map-memory 0"},
		{"longest command line", []string{"--socket", sock, "--cmdline", strings.Repeat("x", 4095)}, 0, "msg=stopped"},
		{"command line", []string{"--cmdline", strings.Repeat("x", 4096)}, 2, "--cmdline: 4096 bytes, more than 4095"},
		{"tick", []string{"--tick", "1us"}, 2, "--tick 1µs: neither 0 nor at least 100µs"},
		{"log level", []string{"--log-level", "loud"}, 2, "not debug, info, warn or error"},
		{"log format", []string{"--log-format", "xml"}, 2, `--log-format "xml": not text or json`},
		{"user", []string{"--allow-uid", "no-such-user"}, 2, `no user "no-such-user"`},
		{"group", []string{"--group", "no-such-group"}, 2, `no group "no-such-group"`},
		{"ready fd", []string{"--socket", sock, "--ready-fd", "999"}, 2, "--ready-fd 999: bad file descriptor"},
		{"socket", []string{"--socket", "tcp://x"}, 2, "only unix:// sockets are served"},
		{"long socket", []string{"--socket", "/" + strings.Repeat("x", 107)}, 2, "is 108 bytes long, a unix socket's path has at most 107: use a shorter one"},
		{"no image", []string{"--socket", sock, "--guest", "/no/such.elf"}, 1, "/no/such.elf: no such file or directory"},
		{"not an image", []string{"--socket", sock, "--guest", "/etc/passwd"}, 1, "not an ELF file"},
		{"no kvm", []string{"--socket", sock, "--kvm", "/missing"}, 1, "open /missing: no kvm"},
		{"kvm forbidden", []string{"--socket", sock, "--kvm", "/forbidden"}, 5, "open /forbidden: permission denied"},
		{"bad probe", []string{"--socket", sock, "--probe", "p:a schedule", "--probe", "p:b schedule %zz"}, 2,
			"--probe \"p:b schedule %zz\": Invalid register name (registers have the names of struct pt_regs, as %di or %rdi): EINVAL [bad_definition, BAD_REG_NAME]\n  Command: p:b schedule %zz\n                        ^\n"},
		{"probe in instruction", []string{"--socket", sock, "--probe", "p:a schedule+2"}, 2, "[not_boundary, BAD_INSN_BNDRY]\n  Command: p:a schedule+2\n               ^\n"},
		{"log disk full", []string{"--socket", sock, full}, 0, "guestprobed: log file /dev/full: write /dev/full: no space left on device; the daemon continues"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, said := runFake(tc.args...)
			if code != tc.code || !strings.Contains(said, tc.text) {
				t.Errorf("status %d, want %d; said:\n%s\nwant %q in it", code, tc.code, said, tc.text)
			}
		})
	}
}

// TestMinTick ties the message of the table above to the machine's limit.
func TestMinTick(t *testing.T) {
	if machine.MinTick.String() != "100µs" {
		t.Errorf("machine.MinTick is %v", machine.MinTick)
	}
}
