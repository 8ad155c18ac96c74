package bench

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/script"
)

// twenty is a script of 20 lines.
//
//go:embed programs/twenty.bt
var twenty string

// attachSites is how many places it is attached at.
const attachSites = 100

// Attach is the cost of starting a script.
type Attach struct {
	Unavailable string  `json:"unavailable,omitempty"`
	Lines       int     `json:"lines"`        // of the script
	Sites       int     `json:"sites"`        // where it is
	InGuest     int     `json:"inGuest"`      // of these: in the guest, without an exit
	Ns          *Spread `json:"ns,omitempty"` // from the text to jumps at its sites
}

// everywhere is a target with functions for a pattern.
type everywhere struct {
	scriptTarget
	names []string
}

func (t everywhere) Match(string, bool, bool, int) ([]string, map[string]int) { return t.names, nil }

// attachCost measures the compiling and attaching of a script.
func (g *benchGuest) attachCost(runs int) (a Attach, err error) {
	a = Attach{Lines: strings.Count(twenty, "\n"), Sites: attachSites}
	s, err := g.newSubjects()
	if err != nil {
		return a, err
	}
	defer s.close()
	e, t := g.m.Engine(), everywhere{scriptTarget: scriptTarget{img: g.m.Image()}}
	for _, sym := range g.m.Image().Symbols() {
		if !sym.User || sym.Kind != guest.SymFunc || len(t.names) == attachSites {
			continue
		}
		if _, err := e.Check(&probe.Kprobe{Addr: sym.Addr, Pre: func(*probe.Context) int { return 0 }}); err == nil {
			t.names = append(t.names, sym.Addr.String()) // several functions may have one name
		}
	}
	if len(t.names) < attachSites {
		return a, fmt.Errorf("the guest has only %d functions that can be probed", len(t.names))
	}
	var samples []float64
	for range runs {
		took, inGuest, err := s.attachScript(t)
		if err != nil {
			return a, err
		}
		a.InGuest = inGuest
		samples = append(samples, float64(took.Nanoseconds()))
	}
	sp := spread(samples)
	a.Ns = &sp
	return a, nil
}

// attachScript attaches the script of 20 lines and detaches it again. It returns
// how long attaching took, and at how many places the script ran in the guest.
func (s *subjects) attachScript(t everywhere) (took time.Duration, inGuest int, err error) {
	e, began := s.g.m.Engine(), time.Now()
	c, err := script.Compile(twenty, t, script.Options{CPUs: s.g.m.Target().NumCPU()})
	if err != nil {
		return 0, 0, err
	}
	o, err := s.rt.LoadScript(c.Object, c.Probes, program.LoadOptions{User: t.User})
	if err != nil {
		return 0, 0, err
	}
	defer o.Close()
	var ks []*probe.Kprobe
	var all []probe.Probe
	for _, p := range o.Programs {
		at, err := strconv.ParseUint(p.AttachTo, 0, 64)
		if err != nil {
			return 0, 0, err
		}
		k := &probe.Kprobe{Name: p.Name, Addr: guest.GVA(at)}
		p.Attach(k, k.Addr, true, true, "")
		ks, all = append(ks, k), append(all, k)
	}
	if err := e.Register(all...); err != nil {
		return 0, 0, err
	}
	defer e.Unregister(ks...)
	if err := e.Optimize(); err != nil {
		return 0, 0, err
	}
	took = time.Since(began)
	for _, k := range ks {
		if i, _ := e.Info(k); i.InGuest {
			inGuest++
		}
	}
	return took, inGuest, nil
}
