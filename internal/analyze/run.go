package analyze

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// Rules selects sets of rules.
type Rules string

// The selections.
const (
	RulesKernel Rules = "kernel" // Linux's rules for the way the image was built
	RulesOurs   Rules = "ours"   // ours, without and with final calls
	RulesBoth   Rules = "both"
)

// Options are the options of File.
type Options struct {
	Rules   Rules
	Workers int // goroutines; 0 means one for each processor
	// Progress, when set, is called from one goroutine at a time with the number
	// of functions that are done and of all, a few times per second.
	Progress func(done, total int)
}

// File analyzes the file at path: an ELF file with function symbols, or a
// bzImage. It does not run any of it.
//
// It analyzes the code in the file. A kernel rewrites parts of itself at boot
// (alternatives, return thunks), and File does not.
func File(ctx context.Context, path string, o Options) (*Report, error) {
	start := time.Now()
	img, err := load(path)
	if err != nil {
		return nil, err
	}
	r, err := img.report(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("analyze %s: %w", path, err)
	}
	r.File, r.Seconds = path, time.Since(start).Seconds()
	return r, nil
}

// rules returns the sets that o selects.
func (img *image) rules(o Options) ([]flow.Rule, error) {
	kernel := flow.Kernel
	if img.kernel != nil && img.kernel.Thunks() {
		kernel = flow.KernelThunks
	}
	switch o.Rules {
	case RulesKernel:
		return []flow.Rule{kernel}, nil
	case RulesOurs:
		return []flow.Rule{flow.Ours, flow.OursCalls}, nil
	case RulesBoth, "":
		return []flow.Rule{kernel, flow.Ours, flow.OursCalls}, nil
	}
	return nil, fmt.Errorf("rules %q: not kernel, ours or both", o.Rules)
}

// report analyzes all functions.
func (img *image) report(ctx context.Context, o Options) (*Report, error) {
	rules, err := img.rules(o)
	if err != nil {
		return nil, err
	}
	all, gaps := img.functions()
	out, left := counts{}, img.findLeft(all)
	fns := make([]function, 0, len(all))
	for i := range all {
		if why := left.reason(&all[i]); why != "" {
			out[why]++
			continue
		}
		fns = append(fns, all[i])
	}
	if len(fns) == 0 {
		return nil, fmt.Errorf("no functions among %d names", len(img.Names))
	}
	index := img.index(all, gaps)
	w := &work{img: img, fns: fns, rules: rules, in: flow.Input{Known: func() *flow.Index { return index }}}
	if img.kernel != nil {
		sites, err := img.kernel.Sites()
		if err != nil {
			return nil, err
		}
		w.in.Exception = sites.Exception
		w.in.Patched = func(lo, hi uint64) string {
			what, _ := sites.PatchAt(lo, hi, linux.Always&^(1<<linux.Bug))
			return what.String()
		}
	}
	sum, err := w.run(ctx, o)
	if err != nil {
		return nil, err
	}
	r := &Report{
		Kind: img.kind, Packing: img.packing, BuildID: img.buildID, Names: img.source,
		Text: sum.text, Targets: index.Len(), Partial: !index.Complete(), Count: len(fns), Insts: sum.insts, Broken: sum.broken,
		Jumps: sum.jumps, Tables: sum.tables, LeftOut: out.sortedCounts(),
	}
	if k := img.kernel; k != nil {
		r.Version, r.Checked, r.Thunks = k.Version, k.Checked, k.Thunks()
	}
	for k, rule := range rules {
		r.Rules = append(r.Rules, Share{rule.String(), sum.entries[k].result(), sum.after[k].result(), sum.boundaries[k].result()})
	}
	return r, nil
}

// work is the functions that goroutines take from.
type work struct {
	img   *image
	fns   []function
	rules []flow.Rule
	in    flow.Input // facts about the whole image
	next  atomic.Int64
}

// sums are the results of one goroutine.
type sums struct {
	text                         uint64
	insts, broken, jumps, tables int
	entries, after, boundaries   []tally
}

// batch is how many functions a goroutine takes at a time.
const batch = 32

// run analyzes all functions on several goroutines.
func (w *work) run(ctx context.Context, o Options) (*sums, error) {
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	results := make([]sums, workers)
	var wg sync.WaitGroup
	for n := range results {
		s := &results[n]
		s.entries, s.after, s.boundaries = make([]tally, len(w.rules)), make([]tally, len(w.rules)), make([]tally, len(w.rules))
		wg.Go(func() {
			for ctx.Err() == nil {
				lo := int(w.next.Add(batch)) - batch
				if lo >= len(w.fns) {
					return
				}
				for k := lo; k < min(lo+batch, len(w.fns)); k++ {
					w.analyzeOne(s, &w.fns[k])
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-tick.C:
			if o.Progress != nil {
				o.Progress(min(int(w.next.Load()), len(w.fns)), len(w.fns))
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	total := &results[0]
	for n := 1; n < workers; n++ {
		total.merge(&results[n])
	}
	return total, nil
}

func (s *sums) merge(u *sums) {
	s.text += u.text
	s.insts, s.broken, s.jumps, s.tables = s.insts+u.insts, s.broken+u.broken, s.jumps+u.jumps, s.tables+u.tables
	for k := range s.entries {
		s.entries[k].merge(&u.entries[k])
		s.after[k].merge(&u.after[k])
		s.boundaries[k].merge(&u.boundaries[k])
	}
}

// analyzeOne analyzes one function: its entry, and all of its instructions up to
// the padding at the end. An endbr at its beginning is not a place of its own:
// probes on it are placed after it.
func (w *work) analyzeOne(s *sums, fn *function) {
	in := w.img.input(fn)
	in.Known, in.Exception, in.Patched = w.in.Known, w.in.Exception, w.in.Patched
	f := flow.Analyze(in)
	insts := f.Insts()
	n := len(insts)
	for n > 1 && isPadding(&insts[n-1].Inst) {
		n--
	}
	insts = insts[:n]
	s.text += uint64(len(fn.code))
	if _, _, bad := f.FirstUndecodable(); bad {
		s.broken++
	}
	for _, j := range f.IndirectJumps() {
		s.jumps++
		if j.Targets != nil {
			s.tables++
		}
	}
	entry := f.Entry()
	for k, r := range w.rules {
		_, no := f.Region(entry, r)
		s.entries[k].add(no)
		if no != nil && no.Reason == flow.ReasonPatchedSite && no.Off == entry && no.Detail == linux.Ftrace.String() {
			_, no = f.Region(entry+x86.JmpLen, r)
			s.after[k].add(no)
		}
	}
	for i := range insts {
		if insts[i].Off < entry {
			continue
		}
		s.insts++
		for k, r := range w.rules {
			_, no := f.Region(insts[i].Off, r)
			s.boundaries[k].add(no)
		}
	}
}
