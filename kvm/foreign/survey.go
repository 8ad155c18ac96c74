package foreign

import "context"

// Surveyed describes a process's VM, as it is seen from outside.
type Surveyed struct {
	Process
	Way    Way    // "" if the guest cannot be reached
	CPUs   int    // vCPUs
	Memory uint64 // bytes; 0 if not known
	Linux  *Linux // nil if the guest does not run Linux, or cannot be reached
	Err    error  // why it cannot be reached, or nil
	Kind   error  // why Linux was not found, or nil
}

// Survey looks at the guest of a process once. It stops the guest's vCPUs for
// about as long as it takes to copy their registers and to find a kernel's
// banner: a few milliseconds at most.
func Survey(ctx context.Context, p Process) (s Surveyed) {
	s = Surveyed{Process: p, CPUs: len(p.VCPUs)}
	g, err := Open(p)
	if err != nil {
		s.Err = err
		return s
	}
	defer g.Close()
	s.Way, s.CPUs, s.Memory = g.Way, g.VCPUs(), g.Size()
	s.Err = g.Stop(ctx, func(cpus []CPU) error {
		known := false
		for _, c := range cpus {
			known = known || c.Known
		}
		if !known {
			return ErrPaused
		}
		l, err := g.FindLinux(cpus)
		if err == nil {
			s.Linux = &l
		}
		s.Kind = err
		return nil
	})
	if g.NoQMP != nil && s.Err != nil {
		s.Err = fail(CodeOf(s.Err), s.Err, "by its QMP socket: %v; from outside", g.NoQMP)
	}
	return s
}
