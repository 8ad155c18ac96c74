package probetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/probe"
)

// stormCases run every kind of activation at once.
var stormCases = []testCase{
	{name: "kretprobe_storm", cpus: 8, run: testStorm},
}

// stormTime is how long the storm lasts: short by default, longer on request.
func (v *env) stormTime() time.Duration {
	s := os.Getenv("GUESTPROBE_STORM")
	if s == "" {
		return 300 * time.Millisecond
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		v.Fatalf("GUESTPROBE_STORM=%s: not a time", s)
	}
	return d
}

// stormer is one vCPU's part of the storm. Each vCPU has two tasks, and shares
// the pools of all kretprobes with the others.
type stormer struct {
	v    *env
	cpu  int
	rng  *rand.Rand
	made map[string]uint64 // activations by function
}

// call calls a function and checks its result.
func (s *stormer) call(want uint64, f string, args ...uint64) error {
	sym, err := s.v.h.Symbol(f)
	if err != nil {
		return err
	}
	got, err := s.v.h.Call(s.cpu, sym.Addr, args...)
	if err == nil && got != want {
		err = fmt.Errorf("%s%v = %d, want %d", f, args, got, want)
	}
	return err
}

// step makes some activations: nested ones, ones that end with a jump, ones that
// are parked and resumed, and ones that are killed while parked.
func (s *stormer) step() error {
	task := uint64(2 * s.cpu)
	n := 1 + s.rng.Uint64N(12)
	switch s.rng.IntN(5) {
	case 0:
		s.made["recurse"] += n + 1
		return s.call(sum(n), "recurse", n)
	case 1:
		s.made["jump_deep"] += n
		if err := s.call(77, "jump_over", n); err != nil {
			return err
		}
		return s.call(n, "fill_stack", n)
	case 2:
		s.made["tail_call"]++
		s.made["tail_end"]++
		return s.call(n+2, "tail_call", n)
	case 3: // a task that is killed: its stack gets another one
		s.made["co_body"] += 2
		if err := s.call(1, "co_begin", task+1, 1); err != nil {
			return err
		}
		if err := s.call(1, "co_begin", task+1, n); err != nil {
			return err
		}
		return s.call(n+100, "co_resume", task+1)
	default: // the other task's activation contains this one's
		s.made["co_body"] += 2
		for i := range uint64(2) {
			if err := s.call(1, "co_begin", task+i, n+i); err != nil {
				return err
			}
		}
		s.made["recurse"] += 3
		if err := s.call(3, "recurse", 2); err != nil {
			return err
		}
		for i := range uint64(2) {
			if err := s.call(n+i+100, "co_resume", task+i); err != nil {
				return err
			}
		}
		return nil
	}
}

// testStorm: kretprobes with few instances on recursive, abandoned, switched
// and killed functions on eight vCPUs. Every result is right, every activation
// was handled or missed, to the unit, and at the end no instance is in use.
func testStorm(v *env) {
	n := v.cpus()
	probes := map[string]*probe.Kretprobe{}
	var batch []probe.Probe
	var wrong atomic.Uint64
	for f, max := range map[string]int{"recurse": 7, "jump_deep": 9, "tail_call": 1, "tail_end": 2, "co_body": 5} {
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: f, Symbol: f}, MaxActive: max, DataSize: 16,
			Entry: func(c *probe.Context) int {
				le.PutUint64(c.Data, c.Regs.RSP)
				le.PutUint64(c.Data[8:], uint64(c.Ret))
				return 0
			},
			Return: func(c *probe.Context) {
				if le.Uint64(c.Data)+8 != c.Regs.RSP || le.Uint64(c.Data[8:]) != c.Regs.RIP {
					wrong.Add(1)
				}
			},
		}
		probes[f] = r
		batch = append(batch, r)
	}
	if err := v.e.Register(batch...); err != nil {
		v.Fatal(err)
	}
	end := time.Now().Add(v.stormTime())
	made := make([]map[string]uint64, n)
	v.runOnAll(n, func(cpu int) error {
		s := &stormer{v: v, cpu: cpu, rng: rand.New(rand.NewPCG(1, uint64(cpu))), made: map[string]uint64{}}
		made[cpu] = s.made
		for time.Now().Before(end) {
			if err := s.step(); err != nil {
				return err
			}
		}
		return s.call(0, "fill_stack", 0)
	})
	equal(v, "return handlers with another activation's data", wrong.Load(), 0)
	for f, r := range probes {
		total := uint64(0)
		for _, m := range made {
			total += m[f]
		}
		v.checkSettled(r)
		s := v.stats(&r.Kprobe)
		v.Logf("%-10s %d activations: %d handled, %d missed; %d returned, %d abandoned", f, total, s.Handled, s.Missed, s.Returns, s.Abandoned)
		equal(v, f+": activations", s.Handled+s.Missed, total)
		i, _ := v.e.Info(&r.Kprobe)
		if i.HighWater > i.MaxActive {
			v.Errorf("%s: high water %d of %d", f, i.HighWater, i.MaxActive)
		}
		v.unregister(&r.Kprobe)
	}
	t := v.e.Totals(-1)
	equal(v, "strays, copies, foreign", t.Strays+t.Copies+t.Foreign, 0)
}
