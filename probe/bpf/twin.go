package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// Twin runs programs in the interpreter and compiled, each with maps of its own,
// and finds every difference. It is what the tests of the compiler are made of.
type Twin struct {
	Runner Runner
	// Budget of the programs; 0 stands for 3000.
	Budget int64

	// What came of the programs so far.
	Refused, HostOnly, Small, Runs int
	Faults                         [numFaults]int

	host, own []*Map
}

const (
	twinCPUs = 2
	twinCPU  = 1 // the vCPU that programs run on
)

// fresh makes new maps.
func (w *Twin) fresh() error {
	w.Runner.Reset()
	w.host, w.own = nil, nil
	for _, s := range RandomMaps() {
		a, err := NewMap(s, twinCPUs, Heap{})
		if err != nil {
			return err
		}
		b, err := NewMap(s, twinCPUs, w.Runner)
		if err != nil {
			return err
		}
		w.host, w.own = append(w.host, a), append(w.own, b)
	}
	return nil
}

// Compare runs a program with the maps of RandomMaps in both back ends, and
// returns the first difference in result, fault, stack, context or any byte of
// the maps. A small program is compiled in both ways.
func (w *Twin) Compare(prog []Insn, kind Kind, runs int) error {
	for _, full := range []bool{false, true} {
		small, err := w.compare(prog, kind, runs, full)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, listing(prog))
		}
		if !small {
			break // the other way is the same
		}
	}
	return nil
}

func (w *Twin) compare(prog []Insn, kind Kind, runs int, full bool) (small bool, err error) {
	if err := w.fresh(); err != nil {
		return false, err
	}
	budget := w.Budget
	if budget == 0 {
		budget = 3000
	}
	a, err := New(Spec{Kind: kind, Insns: prog, Maps: w.host, Budget: budget})
	if refused := (*CheckError)(nil); errors.As(err, &refused) {
		w.Refused++
		return false, nil
	} else if err != nil {
		return false, err
	}
	b, err := New(Spec{Kind: kind, Insns: prog, Maps: w.own, Budget: budget})
	if err != nil {
		return false, err
	}
	code, err := LoadOn(w.Runner, b, Layout{Fixups: true, noGuest: true, full: full, Rejects: true}, BlockConfig{CPU: twinCPU}, kind.ctxSize())
	if host := (*HostOnlyError)(nil); errors.As(err, &host) {
		w.HostOnly++
		return false, nil
	} else if err != nil {
		return false, err
	}
	if code.Info.Small {
		w.Small++
	}
	v := NewVM(a, twinCPU)
	stack := code.Block.Bytes[blkStack:][:StackSize]
	for i := range v.stack {
		v.stack[i], stack[i] = byte(i), byte(i)
	}
	ctx := alignedBytes(kind.ctxSize())
	for i := range ctx {
		ctx[i] = byte(3 * i)
	}
	ctx2 := bytes.Clone(ctx)
	rejects := uint64(0)
	for run := range runs {
		want, err0 := v.Run(ctx, NoEnv{})
		got, err1 := code.Run(ctx2)
		f0, f1 := faultOf(err0), faultOf(err1)
		if f1 == nil {
			return false, fmt.Errorf("run %d: %w", run, err1)
		}
		w.Runs++
		w.Faults[f0.Code]++
		if want == 0 {
			rejects++
		}
		done, failed, missed, _ := BlockStats(code.Block)
		switch {
		case want != got || *f0 != *f1:
			return false, fmt.Errorf("run %d: interpreter %#x %v, compiled %#x %v", run, want, err0, got, err1)
		case !bytes.Equal(ctx, ctx2):
			return false, fmt.Errorf("run %d: contexts differ", run)
		case !code.Info.Small && !bytes.Equal(v.stack, stack):
			return false, fmt.Errorf("run %d: stacks differ", run)
		case done != v.stats.Runs || failed != v.stats.Failed() || missed != 0 || BlockRejects(code.Block) != rejects:
			return false, fmt.Errorf("run %d: block counts %d runs, %d failed, %d missed, %d rejects; want %d, %d, 0, %d",
				run, done, failed, missed, BlockRejects(code.Block), v.stats.Runs, v.stats.Failed(), rejects)
		}
		for i, m := range w.host {
			if !bytes.Equal(m.area.Bytes, w.own[i].area.Bytes) {
				return false, fmt.Errorf("run %d: maps %s differ", run, m.spec.Name)
			}
		}
	}
	return code.Info.Small, nil
}

// faultOf returns the fault that ended a run, a zero one for none, or nil when
// the error is something else.
func faultOf(err error) *Fault {
	f := new(Fault)
	if err != nil && !errors.As(err, &f) {
		return nil
	}
	return f
}

// listing is a program, one slot a line.
func listing(prog []Insn) string {
	var b strings.Builder
	for pc, i := range prog {
		fmt.Fprintf(&b, "%5d: %v\n", pc, i)
	}
	return b.String()
}
