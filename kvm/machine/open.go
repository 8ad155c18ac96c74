package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// ErrSaved: the guest comes from a file (Open), and can only be inspected.
var ErrSaved = errors.New("the guest is one of a file: it does not run, and does not change")

// Open returns the guest of a snapshot for inspection (Machine.Look), without
// KVM. The guest cannot be run, changed or saved (ErrSaved). cfg has its image;
// vCPUs, memory and command line come from the snapshot. Close it. Errors are
// *ConfigError, errors of loading the image, and ErrOtherGuest for another
// image.
func Open(cfg Config, s *snapshot.Snapshot) (_ *Machine, err error) {
	c := &s.Config
	cfg.VCPUs, cfg.Memory, cfg.Cmdline, cfg.Tick = c.VCPUs, c.Memory, c.Cmdline, c.Tick()
	if cfg.Tick == 0 {
		cfg.Tick = -1 // 0 means the default
	}
	m, err := newEmpty(cfg)
	if err != nil {
		return nil, err
	}
	m.cpuid = s.CPUID
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open snapshot: %w", err), m.release())
		}
	}()
	if _, err := m.setUpGuest(s); err != nil {
		return nil, err
	}
	if err := m.snapshots.checkImage(c); err != nil {
		return nil, err
	}
	if err := m.checkMemory(s); err != nil {
		return nil, err
	}
	if err := m.snapshots.putMemory(s); err != nil {
		return nil, err
	}
	for i, v := range m.vcpus {
		saved := &s.CPUs[i]
		regs, sregs := probe.Regs(saved.Regs), saved.Sregs
		v.regs, v.sregs, v.others = &regs, &sregs, saved
		if i < len(c.Activity) {
			v.saved = activityOf(c.Activity[i])
		}
	}
	if err := m.payload().finishRestore(m, s); err != nil {
		return nil, err
	}
	m.checks.Store(c.Checks)
	m.lastBad.Store(c.LastBad)
	switch p := Phase(c.Ended); {
	case p == PhaseExited:
		m.phase, m.exitCode = p, c.ExitCode
	case p == PhaseCrashed:
		m.phase, m.crash = p, new(CrashReport)
		if err := json.Unmarshal(c.Crash, m.crash); err != nil {
			return nil, fmt.Errorf("%w: %w", snapshot.ErrDamaged, err)
		}
	case c.Started:
		m.phase = PhasePaused
	}
	return m, nil
}

// activityOf returns the activity of that name.
func activityOf(name string) VCPUActivity {
	a := VCPUActivity(name)
	if slices.Contains([]VCPUActivity{VCPURunning, VCPUIdle, VCPUHalted, VCPUStopped}, a) {
		return a
	}
	return VCPUParked
}
