package bench

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/program"
)

// benchObject is what programs/bench.bpf.c is compiled to (docs/examples/Makefile
// has the command).
//
//go:embed programs/bench.o
var benchObject []byte

// InGuest is one way to spend time at a probe without an exit, at CPL3.
type InGuest struct {
	Name        string  `json:"name"`
	What        string  `json:"what"`
	Unavailable string  `json:"unavailable,omitempty"`
	CallNs      *Spread `json:"callNs,omitempty"` // one call, probe included
	OverNs      float64 `json:"overNs,omitempty"` // the probe's part of it: median less the unprobed call's
	Floor       string  `json:"floor,omitempty"`  // the hand-written detour that does the same
	FloorRatio  float64 `json:"floorRatio,omitempty"`
	Hits        uint64  `json:"hits,omitempty"`
	Exits       uint64  `json:"exits"`            // of all hits together
	Stored      uint64  `json:"stored,omitempty"` // records that reached the file
	Lost        uint64  `json:"lost,omitempty"`   // and events without room
}

// Names of rows of InGuest.
const (
	rowPlain       = "plain"
	rowFloorCount  = "floor_count"
	rowFloorRecord = "floor_record"
	rowInline      = "inline"
	rowCount       = "count"
	rowRecord      = "record"
	rowReject      = "reject"
	rowReturns     = "returns"
	rowDuration    = "duration"
	rowByArg       = "by_arg"
	rowHistogram   = "histogram"
	rowLatency     = "latency"
)

// inGuestCalls is how many calls one measurement makes, and fewInGuestCalls how
// many if it only checks that everything works.
const (
	inGuestCalls    = 1_000_000
	fewInGuestCalls = 50_000
)

// guestRows measures programs in detours together with detours written by hand.
// All of them take turns, so that they see the same conditions.
func (g *benchGuest) guestRows(ctx context.Context, runs int, calls uint64) ([]InGuest, error) {
	rows := []InGuest{
		{Name: rowPlain, What: "no probe"},
		{Name: rowFloorCount, What: "hand-written detour: lock inc"},
		{Name: rowFloorRecord, What: "hand-written detour: record of time and six arguments"},
		{Name: rowInline, What: "optimized kprobe, inlined counter", Floor: rowFloorCount},
		{Name: rowCount, What: "eBPF program: count into a per-CPU array", Floor: rowFloorCount},
		{Name: rowReject, What: "eBPF program: a filter that rejects"},
		{Name: rowRecord, What: "eBPF program: record of time and six arguments into a ring, drained to a file", Floor: rowFloorRecord},
		{Name: rowReturns, What: "kretprobe, eBPF program at the return: count into a per-CPU array"},
		{Name: rowDuration, What: "kretprobe, eBPF program at the return: histogram of durations"},
		{Name: rowByArg, What: "eBPF program: count by an argument in a per-CPU hash"},
		{Name: rowHistogram, What: "eBPF program: histogram of an argument in a per-CPU array"},
		{Name: rowLatency, What: "kprobe and kretprobe, eBPF programs: histogram of durations by the time in a hash"},
	}
	for _, sc := range scripts {
		rows = append(rows, InGuest{Name: sc.name, What: "script: " + sc.text, Floor: sc.beside})
	}
	s, err := g.newSubjects()
	if err != nil {
		return nil, err
	}
	defer s.close()
	samples := make([][]float64, len(rows))
	for range runs {
		for i := range rows {
			if rows[i].Unavailable != "" {
				continue
			}
			ns, err := s.measure(ctx, &rows[i], calls)
			if err != nil {
				if ctx.Err() != nil {
					return nil, err
				}
				rows[i].Unavailable = err.Error()
				continue
			}
			samples[i] = append(samples[i], ns)
		}
	}
	medians := map[string]float64{}
	for i := range rows {
		if r := &rows[i]; r.Unavailable == "" {
			sp := spread(samples[i])
			r.CallNs, medians[r.Name] = &sp, sp.Median
			r.OverNs = sp.Median - medians[rowPlain]
			if f := medians[r.Floor]; f > 0 {
				r.FloorRatio = sp.Median / f
			}
		}
	}
	return rows, nil
}

// subjects are the programs and detours that guestRows measures.
type subjects struct {
	g    *benchGuest
	rt   *program.Runtime
	obj  *program.Object
	hot  guest.Symbol
	sink *fileSink

	scripts map[string]*program.Object // by the name of the row

	stop, polled chan struct{} // of poll

	counter []byte // of the inlined counter, a word
	inline  *probe.Stage
}

func (g *benchGuest) newSubjects() (*subjects, error) {
	s := &subjects{g: g}
	var err error
	if s.hot, err = g.m.Image().Lookup(symUserFn); err != nil {
		return nil, err
	}
	start := time.Now()
	now := func() int64 { return time.Since(start).Nanoseconds() }
	cfg := program.Config{CPUs: g.m.Target().NumCPU(), Shared: g.m, Engine: g.m.Engine(), Now: now,
		Stop: func(f func() error) error { return g.m.Target().Stop(func(probe.World) error { return f() }) },
		Clock: func() (program.Clock, error) {
			c, err := g.m.Clock(now)
			return program.Clock{Clock: bpf.Clock{TSC: c.TSC, Mult: uint64(1e3 * (1 << 32) / g.mhz), Time: uint64(c.At)}, Counter: c.Counter}, err
		},
	}
	s.rt = program.New(cfg)
	block, host, err := g.m.AllocShared(128, true)
	if err != nil {
		return nil, err
	}
	s.counter = host[:8]
	s.inline = &probe.Stage{
		Code: x86.Assemble(func(a *x86.Asm) {
			a.Lock().Inc(8, x86.At(x86.RSI, 0))
			a.Ret()
		}),
		Block: block, Stride: 64, Lost: block + 64, NoStrings: true, Aligned: true,
		Counts: func(cpu int) (handled, filtered, missed uint64) {
			if cpu != 0 {
				return 0, 0, 0
			}
			n := binary.LittleEndian.Uint64(s.counter)
			return n, 0, 0
		},
	}
	if s.obj, err = s.rt.Load(benchObject, program.LoadOptions{User: func(string) bool { return true }}); err != nil {
		return nil, err
	}
	if err := s.compile(); err != nil {
		s.close()
		return nil, err
	}
	if s.sink, err = newFileSink(); err != nil {
		s.close()
		return nil, err
	}
	s.obj.Emit(func(string) program.Emitter { return s.sink })
	s.rt.Want(true)
	s.stop, s.polled = make(chan struct{}), make(chan struct{})
	go s.poll()
	return s, nil
}

// poll drains the rings, as often as a hub does where there is something.
func (s *subjects) poll() {
	defer close(s.polled)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.rt.Poll()
		case <-s.stop:
			return
		}
	}
}

func (s *subjects) close() {
	if s.stop != nil {
		close(s.stop)
		<-s.polled
	}
	s.obj.Close()
	for _, o := range s.scripts {
		o.Close()
	}
	if s.sink != nil {
		s.sink.close()
	}
}

// measure makes calls for a row, adds their hits to it, and returns the nanoseconds of one call.
func (s *subjects) measure(ctx context.Context, r *InGuest, calls uint64) (float64, error) {
	switch r.Name {
	case rowPlain, rowFloorCount, rowFloorRecord:
		f, err := s.g.m.Image().Lookup("user_" + map[string]string{rowPlain: "floor_plain", rowFloorCount: "floor_count", rowFloorRecord: "floor_record"}[r.Name])
		if err != nil {
			return 0, err
		}
		return s.g.calls(ctx, 3, f.Addr, calls)
	}
	e := s.g.m.Engine()
	k := &probe.Kprobe{Name: r.Name, Addr: s.hot.Addr, Stage: s.inline, Pre: func(*probe.Context) int { return 0 }}
	all := []probe.Probe{k}
	if r.Name != rowInline {
		var err error
		if k, all, err = s.attach(r.Name); err != nil {
			return 0, err
		}
	}
	if err := e.Register(all...); err != nil {
		return 0, err
	}
	defer func() {
		for _, p := range all {
			switch p := p.(type) {
			case *probe.Kprobe:
				e.Unregister(p)
			case *probe.Kretprobe:
				e.Unregister(&p.Kprobe)
			}
		}
	}()
	if err := e.Optimize(); err != nil {
		return 0, err
	}
	if i, _ := e.Info(k); !i.InGuest {
		return 0, fmt.Errorf("it gets no jump: %s %s", i.Unoptimized.Reason, i.Unoptimized.Detail)
	}
	before, exits := e.Totals(-1), trapExits(s.g.m.Stats())
	start, _, _ := e.Stats(k)
	stored, lost := s.sink.stored.Load(), s.sink.lost.Load()
	ns, err := s.g.calls(ctx, 3, s.hot.Addr, calls)
	if err != nil {
		return 0, err
	}
	after, _, _ := e.Stats(k)
	if n := after.InGuest - start.InGuest; n != calls || after.Missed != start.Missed {
		return 0, fmt.Errorf("%d hits of %d calls, %d missed", n, calls, after.Missed-start.Missed)
	}
	r.Hits += after.InGuest - start.InGuest
	r.Exits += trapExits(s.g.m.Stats()) - exits
	if x := e.Totals(-1); x.Detours+x.Breakpoints+x.Returns != before.Detours+before.Breakpoints+before.Returns {
		return 0, fmt.Errorf("%d hits took an exit", x.Detours+x.Breakpoints+x.Returns-before.Detours-before.Breakpoints-before.Returns)
	}
	if r.Name == rowRecord {
		s.rt.Poll()
		r.Stored += s.sink.stored.Load() - stored
		r.Lost += s.sink.lost.Load() - lost
		if r.Stored+r.Lost != r.Hits {
			return 0, fmt.Errorf("%d records stored and %d lost of %d", r.Stored, r.Lost, r.Hits)
		}
	}
	return ns, nil
}

// programs returns the programs of a row.
func (s *subjects) programs(name string) (ps []*program.Program) {
	if o := s.scripts[name]; o != nil {
		return o.Programs
	}
	for _, p := range s.obj.Programs {
		if p.Name == name || name == rowLatency && p.Name == "begin" {
			ps = append(ps, p)
		}
	}
	return ps
}

// attach creates the probes of a row, and returns why one cannot run in the
// guest. The hits of the first count.
func (s *subjects) attach(name string) (first *probe.Kprobe, all []probe.Probe, err error) {
	for _, p := range s.programs(name) {
		k := &probe.Kprobe{Name: p.Name, Addr: s.hot.Addr, Pre: func(*probe.Context) int { return 0 }}
		if p.Kind.AtReturn() {
			ret := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: p.Name, Addr: s.hot.Addr}}
			p.AttachReturn(ret, s.hot.Addr, true, "")
			k, all = &ret.Kprobe, append(all, ret)
		} else {
			p.Attach(k, s.hot.Addr, true, true, "")
			all = append(all, k)
		}
		if p.Place != bpf.InGuest {
			return nil, nil, errors.New(p.Why)
		}
		if first == nil {
			first = k
		}
	}
	return first, all, nil
}

// fileSink writes records to a file that is gone when it is closed.
type fileSink struct {
	file         *os.File
	w            *bufio.Writer
	stored, lost atomic.Uint64
}

func newFileSink() (*fileSink, error) {
	f, err := os.CreateTemp("", "guestprobe-bench-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &fileSink{file: f, w: bufio.NewWriterSize(f, 1<<20)}, nil
}

// Put implements program.Emitter.
func (s *fileSink) Put(_ int, _ int64, data []byte) bool {
	if _, err := s.w.Write(data); err != nil {
		return false
	}
	s.stored.Add(1)
	return true
}

// Lose implements program.Emitter.
func (s *fileSink) Lose(_ int, n uint64) { s.lost.Add(n) }

func (s *fileSink) close() { s.file.Close() }
