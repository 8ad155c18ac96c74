package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// optimizerCPUs and optimizerSites are the size of the measurement.
const (
	optimizerCPUs  = 8
	optimizerSites = 1000

	settleTime = 30 * time.Millisecond
)

// Optimizer is the cost of jumps for a guest that is busy on all its vCPUs.
type Optimizer struct {
	Unavailable string  `json:"unavailable,omitempty"`
	CPUs        int     `json:"cpus"`
	OneNs       *Spread `json:"oneNs,omitempty"`   // one site, from asking the vCPUs to stop until they ran again
	Sites       int     `json:"sites"`             // of the batch
	BatchNs     *Spread `json:"batchNs,omitempty"` // the batch: the same of all its stops together
	Stops       uint64  `json:"stops"`             // of one batch
	LongestNs   float64 `json:"longestNs"`         // of all stops the longest
}

// optimizerCost measures the cost of optimizing.
func optimizerCost(ctx context.Context, runs int) (o Optimizer, err error) {
	o = Optimizer{CPUs: optimizerCPUs, Sites: optimizerSites}
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		return o, err
	}
	m, err := machine.New(machine.Config{Image: img, VCPUs: optimizerCPUs, Cmdline: "busy", Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, m.Close(context.WithoutCancel(ctx))) }()
	if err := m.Resume(); err != nil {
		return o, err
	}
	e := m.Engine()
	var sites []*probe.Kprobe
	for _, s := range img.Symbols() {
		sites = appendSites(sites, e, img, s)
	}
	if sites, err = keepJumps(e, sites); err != nil {
		return o, err
	}
	var one, batch []float64
	for range runs {
		if ctx.Err() != nil {
			return o, context.Cause(ctx)
		}
		took, _, err := optimizeAll(e, sites[:1])
		if err != nil {
			return o, err
		}
		one = append(one, float64(took.Nanoseconds()))
		if took, o.Stops, err = optimizeAll(e, sites); err != nil {
			return o, err
		}
		batch = append(batch, float64(took.Nanoseconds()))
	}
	os, bs := spread(one), spread(batch)
	o.OneNs, o.BatchNs, o.LongestNs = &os, &bs, float64(e.OptimizerStats().LongestStop.Nanoseconds())
	return o, nil
}

// appendSites appends probes on instructions of a function, far enough apart for
// a jump at nearly each.
func appendSites(to []*probe.Kprobe, e *probe.Engine, img *guest.Image, s guest.Symbol) []*probe.Kprobe {
	if s.Kind != guest.SymFunc || s.User || !img.IsText(s.Addr) {
		return to
	}
	next := uint64(0)
	for off := uint64(0); off < s.Size && len(to) < 4*optimizerSites; {
		in, err := x86.Decode(img.Code(s.Addr+guest.GVA(off), x86.MaxLen))
		if err != nil {
			break
		}
		k := &probe.Kprobe{Addr: s.Addr + guest.GVA(off), Pre: func(*probe.Context) int { return 0 }}
		if _, err := e.Check(k); off >= next && err == nil {
			to, next = append(to, k), off+2*x86.JmpLen
		}
		off += uint64(in.Len)
	}
	return to
}

// keepJumps returns the probes of ps that get a jump, as many as the batch
// needs.
func keepJumps(e *probe.Engine, ps []*probe.Kprobe) (out []*probe.Kprobe, err error) {
	if err := e.Register(probe.Probes(ps)...); err != nil {
		return nil, err
	}
	err = e.Optimize()
	for _, p := range ps {
		if i, _ := e.Info(p); i.Optimized && len(out) < optimizerSites {
			out = append(out, &probe.Kprobe{Addr: p.Addr, Pre: p.Pre})
		}
	}
	if err = errors.Join(err, e.Unregister(ps...)); err == nil && len(out) < optimizerSites {
		err = fmt.Errorf("only %d of %d sites can have a jump", len(out), optimizerSites)
	}
	return out, err
}

// optimizeAll optimizes ps in one batch, and returns how long the guest was
// stopped for it, and how often. Their detours are there from the first time.
func optimizeAll(e *probe.Engine, ps []*probe.Kprobe) (took time.Duration, stops uint64, err error) {
	if err := e.Register(probe.Probes(ps)...); err != nil {
		return 0, 0, err
	}
	// The vCPUs were stopped for the registration just now: let them get going.
	time.Sleep(settleTime)
	before := e.OptimizerStats()
	err = e.Optimize()
	after := e.OptimizerStats()
	if n := after.Now - before.Now; err == nil && n != len(ps) {
		err = fmt.Errorf("%d of %d sites got a jump", n, len(ps))
	}
	err = errors.Join(err, e.Unregister(ps...))
	for i, p := range ps {
		ps[i] = &probe.Kprobe{Addr: p.Addr, Pre: p.Pre}
	}
	return after.Stopped - before.Stopped, after.Passes - before.Passes, err
}
