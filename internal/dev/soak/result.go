package soak

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Result is the result of a soak.
type Result struct {
	Passed  bool     `json:"passed"`
	Seed    uint64   `json:"seed"`
	VCPUs   []int    `json:"vcpus"`
	Clients int      `json:"clients"`
	Seconds float64  `json:"seconds"` // total, including checks
	Sites   int      `json:"sites"`   // places that are probed at random
	Total   Tally    `json:"total"`   // of all phases
	Phases  []*Phase `json:"phases"`
}

// Failures returns all that went wrong, in order.
func (r *Result) Failures() []string {
	var out []string
	for _, p := range r.Phases {
		for _, f := range p.Failures {
			out = append(out, p.Name+": "+f)
		}
		if n := p.FailuresMore; n > 0 {
			out = append(out, fmt.Sprintf("%s: and %d more", p.Name, n))
		}
	}
	return out
}

// maxFailures bounds how many failures of a phase are kept in words.
const maxFailures = 40

// Phase is a stretch of clients at work, the way it ended, and the checks after
// it.
type Phase struct {
	Name         string      `json:"name"`
	VCPUs        int         `json:"vcpus"`
	Daemon       int         `json:"daemon"`  // which one of this size, from 1
	Cmdline      string      `json:"cmdline"` // of the guest
	Seconds      float64     `json:"seconds"`
	Tally        Tally       `json:"tally"`
	Checks       []Check     `json:"checks"`
	Uses         *api.Daemon `json:"uses,omitempty"` // the daemon's process, at rest after the phase
	Failures     []string    `json:"failures,omitempty"`
	FailuresMore int         `json:"failuresMore,omitempty"`

	mu    sync.Mutex
	start time.Time
}

// Check is one thing that must hold.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"` // figures, or the unexpected result
}

// Tally counts the clients' operations and their results.
type Tally struct {
	Ops      map[string]int `json:"ops"`      // begun, by name
	Refusals map[string]int `json:"refusals"` // by the reason's code
	Attached uint64         `json:"attached"` // probes
	Sites    int            `json:"sites"`    // different places that had a probe
	Hits     uint64         `json:"hits"`     // in the final counts that were seen
	Missed   uint64         `json:"missed"`
	Events   uint64         `json:"events"`   // delivered to readers
	Lost     uint64         `json:"lost"`     // counted as lost to a reader
	Summed   int            `json:"summed"`   // streams whose sum was closed against their probes' own counts
	Ended    int            `json:"ended"`    // streams that ended with an end record
	Cut      int            `json:"cut"`      // streams that their client cut off
	Killed   int            `json:"killed"`   // client processes ended by SIGKILL
	Overfull int            `json:"overfull"` // streams whose queue overflowed
	Scripts  int            `json:"scripts"`  // scripts whose sums were closed against their probes' own counts
	Saved    int            `json:"saved"`    // snapshots with the image's text
	Stopped  int            `json:"stopped"`  // vCPUs found stopped at a hit, and stepped
}

func newTally() Tally { return Tally{Ops: map[string]int{}, Refusals: map[string]int{}} }

// Operations returns how many operations were begun, and how many probes or
// changes were rejected.
func (t *Tally) Operations() (begun, refused int) {
	for n := range maps.Values(t.Ops) {
		begun += n
	}
	for n := range maps.Values(t.Refusals) {
		refused += n
	}
	return begun, refused
}

// add adds u to t. Sites are not a sum; t keeps the larger number.
func (t *Tally) add(u *Tally) {
	for k, n := range u.Ops {
		t.Ops[k] += n
	}
	for k, n := range u.Refusals {
		t.Refusals[k] += n
	}
	t.Attached += u.Attached
	t.Sites = max(t.Sites, u.Sites)
	t.Hits += u.Hits
	t.Missed += u.Missed
	t.Events += u.Events
	t.Lost += u.Lost
	t.Summed += u.Summed
	t.Ended += u.Ended
	t.Cut += u.Cut
	t.Killed += u.Killed
	t.Overfull += u.Overfull
	t.Scripts += u.Scripts
	t.Saved += u.Saved
	t.Stopped += u.Stopped
}

func newPhase(name string, vcpus, daemon int, cmdline string) *Phase {
	return &Phase{Name: name, VCPUs: vcpus, Daemon: daemon, Cmdline: cmdline, Tally: newTally(), start: time.Now()}
}

// fail notes that something is wrong.
func (p *Phase) fail(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.Failures) == maxFailures {
		p.FailuresMore++
		return
	}
	p.Failures = append(p.Failures, fmt.Sprintf(format, args...))
}

// check notes that something was looked at: an empty wrong means that it holds.
func (p *Phase) check(name, wrong, detail string) {
	c := Check{Name: name, OK: wrong == "", Detail: detail}
	if wrong != "" {
		c.Detail = wrong
		p.fail("%s: %s", name, wrong)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Checks = append(p.Checks, c)
}

// count changes the tally.
func (p *Phase) count(change func(*Tally)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.Tally)
}

// failed reports whether something went wrong so far.
func (p *Phase) failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.Failures) > 0
}

// end closes the phase's account.
func (p *Phase) end() { p.Seconds = time.Since(p.start).Seconds() }

// summary is the phase in a line.
func (p *Phase) summary() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := 0
	for _, c := range p.Checks {
		if c.OK {
			held++
		}
	}
	t := &p.Tally
	begun, refused := t.Operations()
	s := fmt.Sprintf("%s: %d operations, %d refused, %d probes attached, %d hits, %d events and %d lost, %d of %d checks hold",
		p.Name, begun, refused, t.Attached, t.Hits, t.Events, t.Lost, held, len(p.Checks))
	if len(p.Failures) > 0 {
		s += fmt.Sprintf("; %d failures", len(p.Failures)+p.FailuresMore)
	}
	return s
}
