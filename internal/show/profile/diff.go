package profile

import (
	"fmt"

	pprof "github.com/google/pprof/profile"
)

// Diff returns a profile with the samples of p, and the samples of base with
// negative values and the label that go tool pprof expects there. Both have to
// be of the same kind.
func Diff(base, p *pprof.Profile) (*pprof.Profile, error) {
	if a, b := kind(base), kind(p); a != b {
		return nil, fmt.Errorf("one profile is of %s, the other of %s", a, b)
	}
	base = base.Copy()
	base.Scale(-1)
	base.SetLabel(baseLabel, []string{"true"})
	return pprof.Merge([]*pprof.Profile{p.Copy(), base})
}

// kind returns the types of a profile's values.
func kind(p *pprof.Profile) (s string) {
	for _, t := range p.SampleType {
		if s != "" {
			s += ", "
		}
		s += t.Type + " (" + t.Unit + ")"
	}
	return s
}

// Compared reports whether p is a result of Diff.
func Compared(p *pprof.Profile) bool {
	for _, s := range p.Sample {
		if _, base := value(s, 0); base {
			return true
		}
	}
	return false
}
