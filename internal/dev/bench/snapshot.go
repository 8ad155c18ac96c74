package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// Snapshots is the cost of saving a busy guest of DefaultMemory, and of
// resetting it to the snapshot.
type Snapshots struct {
	Unavailable string  `json:"unavailable,omitempty"`
	Memory      uint64  `json:"memory"`              // bytes of RAM
	FileBytes   int64   `json:"fileBytes"`           // of the last file
	SaveNs      *Spread `json:"saveNs,omitempty"`    // of a guest that runs, into a file
	StopNs      *Spread `json:"stopNs,omitempty"`    // part of that, until the guest resumes
	RestoreNs   *Spread `json:"restoreNs,omitempty"` // from the file into a new machine, up to its first instruction
	ResetNs     *Spread `json:"resetNs,omitempty"`   // of a guest that has run for runTime since
}

// runTime is how long the guest runs before it is saved, and before it is reset.
const runTime = 20 * time.Millisecond

// snapshots measures saving and going back.
func snapshots(ctx context.Context, runs int) (out Snapshots, err error) {
	out.Memory = machine.DefaultMemory
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		return out, err
	}
	m, err := machine.New(machine.Config{Image: img, Cmdline: "busy"})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, m.Close(context.WithoutCancel(ctx))) }()
	file, err := os.CreateTemp("", "snapshot")
	if err != nil {
		return out, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	var save, stop, restore, reset []float64
	host := m.Host()
	for range runs {
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		if err := m.Resume(); err != nil {
			return out, err
		}
		time.Sleep(runTime)
		start := time.Now()
		s, err := m.Save(nil)
		if err != nil {
			return out, err
		}
		stop = append(stop, float64(time.Since(start)))
		if _, err := file.Seek(0, 0); err != nil {
			return out, err
		}
		if out.FileBytes, err = s.WriteTo(file); err != nil {
			return out, err
		}
		save = append(save, float64(time.Since(start)))
		time.Sleep(runTime)
		start = time.Now()
		if err := m.ResetTo(ctx, s); err != nil {
			return out, err
		}
		reset = append(reset, float64(time.Since(start)))
		if _, err := file.Seek(0, 0); err != nil {
			return out, err
		}
		start = time.Now()
		if s, err = snapshot.Read(file, guest.MaxRAM); err != nil {
			return out, err
		}
		n, err := machine.New(machine.Config{Image: img, Cmdline: "busy", Host: &host})
		if err != nil {
			return out, err
		}
		err = n.ResetTo(ctx, s)
		if err == nil {
			err = n.Resume()
		}
		restore = append(restore, float64(time.Since(start)))
		if err := errors.Join(err, n.Close(context.WithoutCancel(ctx))); err != nil {
			return out, err
		}
	}
	for to, samples := range map[**Spread][]float64{&out.SaveNs: save, &out.StopNs: stop, &out.RestoreNs: restore, &out.ResetNs: reset} {
		s := spread(samples)
		*to = &s
	}
	return out, nil
}

// String describes the measurements.
func (s *Snapshots) String() string {
	if s.SaveNs == nil {
		return fmt.Sprintf("What snapshots cost was not measured: %s.", s.Unavailable)
	}
	ms := func(s *Spread) string { return (&Spread{s.Min / 1e6, s.Median / 1e6, s.Max / 1e6}).String() + " ms" }
	return fmt.Sprintf("Snapshots of a busy guest with %d MiB of memory, files of %d KiB: saved in %s, of which it is stopped for at most %s; restored in a new machine in %s; reset to where it was in %s.",
		s.Memory>>20, s.FileBytes>>10, ms(s.SaveNs), ms(s.StopNs), ms(s.RestoreNs), ms(s.ResetNs))
}
