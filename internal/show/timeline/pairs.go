package timeline

import (
	"strings"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Pairs finds the entries that returns belong to. Its memory is bounded.
type Pairs struct {
	rets   map[uint64]bool // probes by number: at an instruction that returns
	open   map[call][]entry
	held   int   // entries
	latest int64 // time of a hit
}

// call is the common data of an entry and a return.
type call struct {
	function string
	pid      int32
	cpu      int // if tasks are not known, or for an idle one
}

// entry is a call that has not returned.
type entry struct {
	at   int64
	args []api.Arg
}

// Bounds of the remembered calls.
const (
	maxDepth    = 64      // calls of one function by one task
	maxHeld     = 1 << 14 // calls
	maxArgBytes = 1 << 10 // of an entry's arguments; with more they are not remembered
	maxSkew     = 1e6     // nanoseconds between a return probe's entry and that of another probe there
)

// NewPairs returns pairs without any calls.
func NewPairs() *Pairs {
	return &Pairs{rets: map[uint64]bool{}, open: map[call][]entry{}}
}

// Start records which probes are at instructions that return.
func (p *Pairs) Start(s *api.Start) {
	p.latest = s.TimeNS
	for _, pr := range s.Probes {
		if pr.Kind == "k" && (pr.Insn == "c3" || pr.Insn == "f3c3" || strings.HasPrefix(pr.Insn, "c2") && len(pr.Insn) == 6) {
			p.rets[pr.ID] = true
		}
	}
}

// Clear forgets all calls, because the guest was booted again.
func (p *Pairs) Clear() {
	clear(p.open)
	p.held = 0
}

// Hit adds the next hit. For a return it returns when the call began, in the
// stream's time, and the arguments that a probe at the entry has captured, if
// there was one.
func (p *Pairs) Hit(h *api.Hit) (began int64, args []api.Arg, ok bool) {
	p.latest = max(p.latest, h.TimeNS)
	isReturn := h.Stage == "return"
	if !isReturn && h.Stage != "pre" {
		return 0, nil, false
	}
	c := call{function: functionOf(h), cpu: h.CPU}
	if h.Task != nil && h.Task.PID != 0 {
		c.pid, c.cpu = h.Task.PID, 0
	}
	if isReturn || p.rets[h.ID] {
		return p.end(c, h)
	}
	if _, offset, _ := strings.Cut(h.Symbol, "+"); c.function != "" && (offset == "" || offset == "0x0" || offset == "0x4") { // after endbr64
		p.begin(c, entry{h.TimeNS, dropLarge(h.Args)})
	}
	return 0, nil, false
}

// begin remembers an entry.
func (p *Pairs) begin(c call, e entry) {
	if p.held >= maxHeld {
		p.Clear()
	}
	of := p.open[c]
	if len(of) == maxDepth {
		of = append(of[:0], of[1:]...)
		p.held--
	}
	p.open[c] = append(of, e)
	p.held++
}

// end finds the entry of a return. As far as is known, later entries have not
// returned.
func (p *Pairs) end(c call, h *api.Hit) (int64, []api.Arg, bool) {
	of := p.open[c]
	i := len(of) - 1
	began := h.TimeNS - h.DurationNS
	if h.DurationNS == 0 {
		if i < 0 {
			return 0, nil, false
		}
		began = of[i].at
	} else {
		for i > 0 && distance(of[i-1].at, began) < distance(of[i].at, began) {
			i--
		}
		if i < 0 || distance(of[i].at, began) > maxSkew {
			return began, nil, true
		}
	}
	args := of[i].args
	p.held -= len(of) - i
	if i == 0 {
		delete(p.open, c)
	} else {
		p.open[c] = of[:i]
	}
	return began, args, true
}

func distance(a, b int64) int64 { return max(a-b, b-a) }

// dropLarge returns arguments, or nil if they are too large to be remembered.
func dropLarge(args []api.Arg) []api.Arg {
	n := 0
	for _, a := range args {
		n += len(a.Name) + len(a.Text)
	}
	if n > maxArgBytes {
		return nil
	}
	out := make([]api.Arg, len(args))
	for i, a := range args {
		out[i] = api.Arg{Name: a.Name, Type: a.Type, Value: a.Value, Raw: a.Raw, Text: a.Text}
	}
	return out
}

// functionOf returns the function of a hit, or "" if it is not known.
func functionOf(h *api.Hit) string {
	name, _, _ := strings.Cut(h.Symbol, "+")
	return shorten(name, 256)
}
