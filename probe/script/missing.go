package script

import "strings"

// providerName returns the provider in messages: fentry and fexit, which have a place in common with kprobe and kretprobe, keep their names.
func (a *attachPoint) providerName() string {
	switch a.word {
	case "fentry", "kfunc", "f":
		return "fentry"
	case "fexit", "kretfunc", "fr":
		return "fexit"
	}
	return a.provider
}

// inModule returns the name of a function as the target looks it up.
func (a *attachPoint) inModule(fn string) string {
	if a.kernel {
		return "vmlinux:" + fn
	}
	return fn
}

// missingModule returns the error for a function of a module of the guest's kernel that
// is not loaded, or nil. If the module may be loaded later, the script can wait for it by
// its setting missing_probes.
func (s *script) missingModule(a attachPoint, fn string, mayCome bool, t Target) error {
	mod, _, ok := strings.Cut(fn, ":")
	if !ok || a.inUser() {
		return nil
	}
	loaded, why := t.HasModule(mod)
	if loaded {
		return nil
	}
	missing := s.errorAt(a.Span, "specified module %s in probe %s:%s is not loaded.", mod, a.providerName(), a.target)
	switch {
	case !mayCome:
		return missing.hint("%s", why)
	case s.config.missing == "error":
		return missing.hint("with config = { missing_probes = \"warn\" } the probe waits for the module")
	case s.config.missing == "warn":
		missing.AtRunTime = true
		missing.Message += " The probe waits for it."
		s.left = append(s.left, missing)
	}
	return nil
}

// skipMissing returns the warnings for attach points of a probe that match nothing; ps are the places of the others. A pattern without a match is
// an error if the probe has no other place, and missing_probes does not allow that.
func (s *script) skipMissing(d *probeDef, ps []*point, unmatched []*Error) (warnings []*Error, err error) {
	switch {
	case len(unmatched) == 0 || s.config.missing == "ignore":
		return nil, nil
	case s.config.missing == "error" && len(ps) == 0:
		return nil, unmatched[0]
	}
	for _, w := range unmatched {
		w.AtRunTime = true
		w.Message += ". Skipping."
		warnings = append(warnings, w)
	}
	if len(ps) == 0 {
		w := s.errorAt(d.Span, "Probe has no valid attach points. It is being removed which may cause issues with program behavior.")
		w.AtRunTime = true
		warnings = append(warnings, w)
	}
	return warnings, nil
}

// maxMissing bounds the missing places that an error names.
const maxMissing = 5

// noProbesError returns the error for a script of which missing places leave no probe.
func (s *script) noProbesError() *Error {
	var missing []string
	for _, d := range s.probes {
		for _, a := range d.points {
			missing = append(missing, a.text)
		}
	}
	err := s.errorAt(s.probes[0].Span, "No probes to attach")
	if n := len(missing); n > maxMissing {
		missing = append(missing[:maxMissing], "...")
	}
	return err.hint("there is no %s", strings.Join(missing, ", "))
}
