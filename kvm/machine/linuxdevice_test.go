package machine

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/device"
)

// image makes a disk image with these bytes, filled up to a sector.
func image(t *testing.T, b []byte) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "disk")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(append(b, bytes.Repeat([]byte("\n"), -len(b)&511)...)); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// runScript boots a guest with these disks, which runs the shell script that is its first one (the
// kernel's command line has no room for it), switches itself off, and returns what it wrote.
func runScript(t *testing.T, dir, script string, disks ...device.Disk) []string {
	t.Helper()
	m := bootLinux(t, dir, "sh /dev/vda", func(c *Config) {
		c.VCPUs = 2
		c.Linux.Disks = append([]device.Disk{{Path: image(t, []byte(script)), ReadOnly: true}}, disks...)
	})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	s, err := m.Wait(patience.Context(t))
	out := lines(m)
	if err != nil || s.Phase != PhaseExited || s.ExitCode != 0 {
		t.Fatalf("ended in %v with %d, %v\n%s", s.Phase, s.ExitCode, err, strings.Join(out, "\n"))
	}
	if err := m.Close(context.Background()); err != nil {
		t.Error(err)
	}
	return out
}

// Linux finds its disks, makes a file system on one and copies what the host gave it; the host finds all of
// it, and so does the next boot.
func TestLinuxDisks(t *testing.T) {
	const size = 2 << 20
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			given := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{7}).Read(given)
			fs, copied := image(t, make([]byte, 16<<20)), image(t, make([]byte, size))
			out := runScript(t, dir, `
mkdir /m
mke2fs /dev/vdb >/dev/null && mount -t ext2 /dev/vdb /m && cat /dev/vdc >/m/given && umount /m && echo made
dd if=/dev/vdc of=/dev/vdd bs=64k 2>/dev/null; sync
dd if=/dev/zero of=/dev/vdc bs=512 count=1 2>/dev/null || echo kept
cd /sys/block
for d in vd?; do echo $d $(cat $d/serial $d/size $d/ro); done
head -c 100 /dev/hwrng | wc -c
echo by hvc >/dev/hvc0
`, device.Disk{Path: fs}, device.Disk{Path: image(t, given), ReadOnly: true}, device.Disk{Path: copied})
			for _, want := range []string{"made", "kept", "100", "by hvc", "vda guestprobe-disk01 1", "vdb guestprobe-disk132768 0", "vdc guestprobe-disk24096 1", "vdd guestprobe-disk34096 0"} {
				if !slices.Contains(out, want) {
					t.Errorf("the guest did not say %q:\n%s", want, strings.Join(out, "\n"))
				}
			}
			if b, err := os.ReadFile(copied); err != nil || !bytes.Equal(b, given) {
				t.Errorf("the copy differs, %v", err)
			}
			// The magic number of the file system (Linux, fs/ext2/ext2.h), where the host sees it.
			if b, err := os.ReadFile(fs); err != nil || b[1024+56] != 0x53 || b[1024+57] != 0xef {
				t.Errorf("no file system, %v", err)
			}
			out = runScript(t, dir, "mkdir /m; mount -t ext2 -o ro /dev/vdb /m && cd /m && md5sum given\n", device.Disk{Path: fs, ReadOnly: true})
			if want := fmt.Sprintf("%x  given", md5.Sum(given)); !slices.Contains(out, want) {
				t.Errorf("the next boot does not find %s:\n%s", want, strings.Join(out, "\n"))
			}
		})
	}
}

// What is typed at the console reaches the guest's shell, at its prompt and ahead of it, and is
// refused when the guest has ended.
func TestLinuxInput(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m := bootLinux(t, dir, "read a; echo got $a; echo ready; sh", nil)
			tap, _ := m.Console().Tap()
			defer tap.Close()
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
			input := func(s string) {
				t.Helper()
				if n, err := m.Input(patience.Context(t), []byte(s)); n != len(s) || err != nil {
					t.Fatalf("%d bytes of %q taken, %v", n, s, err)
				}
			}
			input("ahead\r")
			await(t, m, "got ahead")
			await(t, m, "ready")
			input("echo $((6*7))\r")
			await(t, m, "42")
			input("exit 3\r")
			s, err := m.Wait(patience.Context(t))
			if err != nil || s.Phase != PhaseExited || !slices.Contains(lines(m), "GP-DONE rc=3") {
				t.Errorf("ended in %v, %v\n%s", s.Phase, err, strings.Join(lines(m), "\n"))
			}
			if b, lost := tap.Take(); lost != 0 || !bytes.Contains(b, []byte("42\r\n")) || !bytes.Contains(b, []byte("# ")) {
				t.Errorf("%d bytes lost; the terminal saw %q", lost, b)
			}
			if _, err := m.Input(patience.Context(t), []byte("x")); err != ErrNotRunnable {
				t.Errorf("behind the end: %v", err)
			}
		})
	}
}
