package device

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
)

func ramOf(t testing.TB) *guest.Memory { m, _ := newRAM(t); return m }

// TestStateComesBack: a board that gets the state of another one goes on where that was: the same registers, what was typed, the
// same requests served once.
func TestStateComesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1e9, 0)
	lines := map[uint32]bool{}
	made := func(disk Disk) *Platform {
		t.Helper()
		p, err := New(Config{VCPUs: 1, IRQ: func(n uint32, high bool) { lines[n] = high }, RAM: ramOf(t), Disks: []Disk{disk}, Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	p := made(Disk{Path: path, ReadOnly: true})
	for _, w := range []struct {
		port uint16
		b    byte
	}{{serialPort + uartIER, ierReceived}, {serialPort + uartMCR, mcrOut2}, {serialPort + uartScratch, 0x5a}, {clockIndex, 0x44}, {clockData, 0x17}, {resetPort, 2}} {
		p.Out(w.port, []byte{w.b})
	}
	if n, err := p.Input(t.Context(), Serial, []byte("hi")); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	now = now.Add(3 * time.Second)
	release := p.Hold()
	state, err := p.Save()
	release()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	var read State
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*state, read); diff != "" {
		t.Errorf("(-saved +read):\n%s", diff)
	}
	now = now.Add(time.Hour)
	clear(lines)
	q := made(Disk{Path: path, ReadOnly: true})
	if err := q.Restore(&read); err != nil {
		t.Fatal(err)
	}
	if !lines[serialIRQ] {
		t.Errorf("lines %v", lines)
	}
	for _, r := range []struct {
		port uint16
		want byte
	}{{serialPort + uartData, 'h'}, {serialPort + uartData, 'i'}, {serialPort + uartScratch, 0x5a}, {clockData, 0x17}, {resetPort, 2}} {
		var b [1]byte
		if q.In(r.port, b[:]); b[0] != r.want {
			t.Errorf("port %#x has %#x, want %#x", r.port, b[0], r.want)
		}
	}
	if lines[serialIRQ] {
		t.Error("the line is high with nothing to read")
	}
	var timer [4]byte
	q.In(pmPort+pmTimer, timer[:])
	if got, want := uint32(timer[0])|uint32(timer[1])<<8|uint32(timer[2])<<16|uint32(timer[3])<<24, uint32(3*pmTimerHz); got != want {
		t.Errorf("the timer has counted %d, want %d", got, want)
	}
	again, err := q.Save()
	if err != nil {
		t.Fatal(err)
	}
	read.Serial.Input = nil
	again.Serial.Input = nil
	if diff := cmp.Diff(read, *again); diff != "" {
		t.Errorf("(-restored +saved again):\n%s", diff)
	}

	// What does not fit.
	if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := made(Disk{Path: path, ReadOnly: true}).Restore(&read); !errors.Is(err, ErrOtherBoard) || !strings.Contains(err.Error(), "another size") {
		t.Errorf("a larger disk: %v", err)
	}
	q.Close()
	p.Close()
	w := filepath.Join(t.TempDir(), "w")
	if err := os.WriteFile(w, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	p = made(Disk{Path: w})
	if state, err = p.Save(); err != nil {
		t.Fatal(err)
	}
	if err := p.CheckFit(state); err != nil {
		t.Error(err)
	}
	if err := os.Chtimes(w, now, now); err != nil {
		t.Fatal(err)
	}
	if err := p.CheckFit(state); !errors.Is(err, ErrOtherBoard) || !strings.Contains(err.Error(), "have changed since") {
		t.Errorf("a disk that was written: %v", err)
	}
	p = made(Disk{Path: path, ReadOnly: true})
	if err := p.CheckFit(&State{}); !errors.Is(err, ErrOtherBoard) {
		t.Errorf("no devices: %v", err)
	}
}

// FuzzState: a state made by anybody is refused or taken, and harms nobody.
func FuzzState(f *testing.F) {
	p, err := New(Config{VCPUs: 1, IRQ: func(uint32, bool) {}, RAM: ramOf(f)})
	if err != nil {
		f.Fatal(err)
	}
	defer p.Close()
	state, err := p.Save()
	if err != nil {
		f.Fatal(err)
	}
	state.Virtio[0].Status = statusFeaturesOK | statusDriverOK
	state.Virtio[0].Queues[0] = QueueState{Ready: true, Size: 8, Desc: 0x1000, Avail: 0x2000, Used: 0x3000}
	text, err := json.Marshal(state)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, b []byte) {
		var s State
		if json.Unmarshal(b, &s) != nil {
			return
		}
		p, err := New(Config{VCPUs: 1, IRQ: func(uint32, bool) {}, RAM: ramOf(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if p.CheckFit(&s) != nil {
			return
		}
		if err := p.Restore(&s); err != nil {
			t.Errorf("it fits, but %v", err)
		}
		release := p.Hold()
		defer release()
		if _, err := p.Save(); err != nil {
			t.Error(err)
		}
	})
}
