package foreign

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	bounds "github.com/guestprobe/guestprobe/internal/testing/patience"
)

// TestSilent: a QEMU that is stopped costs a request its time once, not for ever; the guest is not left paused, and is read
// again when QEMU continues. It is not opened either, by no way.
func TestSilent(t *testing.T) {
	at := addresses(t)
	q := kvmtest.StartQEMU(t, repo, "silent", true)
	g := openQEMU(t, q, 1)
	for n := uint64(0); n == 0; {
		n, _ = countCalls(t, g, at["calls"])
	}
	defer func(was, silent time.Duration) { qmpTime, silentTime = was, silent }(qmpTime, silentTime)
	qmpTime, silentTime = time.Second, 5*time.Millisecond
	for range 3 {
		if err := unix.Kill(q.PID, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				for range waiting { // more than answers may wait
					if err := g.Stop(t.Context(), func([]CPU) error { return nil }); CodeOf(err) != CodeBusy {
						t.Errorf("of a stopped QEMU: %v, want %s", err, CodeBusy)
						return
					}
				}
			})
		}
		all.Wait()
		if p, err := Find(strconv.Itoa(q.PID)); err != nil {
			t.Error(err)
		} else if _, err := Open(p); CodeOf(err) != CodeBusy || !strings.Contains(err.Error(), "SIGSTOP") {
			t.Errorf("open: %v", err)
		}
		if err := unix.Kill(q.PID, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		first, ok := uint64(0), false
		for limit := bounds.Context(t); ; {
			if limit.Err() != nil {
				t.Fatal("the guest does not count")
			}
			err := g.Stop(t.Context(), func([]CPU) error {
				b, err := g.Memory().Slice(guest.GPA(at["calls"]), 8)
				if err == nil && ok && binary.LittleEndian.Uint64(b) != first {
					return errCounts
				}
				if err == nil {
					first, ok = binary.LittleEndian.Uint64(b), true
				}
				return err
			})
			if errors.Is(err, errCounts) {
				break
			}
		}
	}
}

// errCounts ends a wait for a guest that counts.
var errCounts = errors.New("it counts")

// TestSecondSocket: if another client has the first QMP socket of a QEMU, the second one is used.
func TestSecondSocket(t *testing.T) {
	second := filepath.Join(t.TempDir(), "second")
	q := kvmtest.StartQEMU(t, repo, "second", true, "-qmp", "unix:"+second+",server=on,wait=off")
	a, b := openQEMU(t, q, 1), openQEMU(t, q, 1)
	for _, g := range []*Guest{a, b} {
		if g.Way != Cooperative {
			t.Errorf("by %s (%v)", g.Way, g.NoQMP)
		}
		if err := g.Stop(t.Context(), func([]CPU) error { return nil }); err != nil {
			t.Error(err)
		}
	}
}
