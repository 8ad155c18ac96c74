package bpftest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Twin runs programs in the interpreter and compiled, each with maps of its own,
// and finds every difference. The tests of the compiler are built on it.
type Twin struct {
	Runner bpf.Runner
	// Budget of the programs; 0 stands for one that a few reads do not use up.
	Budget int64
	// Tally counts the outcomes of the programs so far.
	Tally

	host, own pool
}

// Tally counts programs and their runs.
type Tally struct {
	Refused  int            `json:"refused"`  // by the checker
	HostOnly int            `json:"hostOnly"` // not to be compiled
	Small    int            `json:"small"`    // compiled without most checks
	Runs     int            `json:"runs"`
	Ended    map[string]int `json:"ended"` // runs, by bpf.FaultCode
}

const (
	twinCPUs = 2
	twinCPU  = 1 // the vCPU that programs run on
)

// renewMaps makes new maps.
func (w *Twin) renewMaps() error {
	w.Runner.Reset()
	w.host, w.own = pool{Memory: bpf.Heap{}}, pool{Memory: w.Runner}
	return errors.Join(w.host.fill(), w.own.fill())
}

// pool is a set of maps, and the memory of each.
type pool struct {
	bpf.Memory
	maps  []*bpf.Map
	areas []bpf.Area
}

// Alloc implements bpf.Memory.
func (p *pool) Alloc(size int) (bpf.Area, error) {
	a, err := p.Memory.Alloc(size)
	p.areas = append(p.areas, a)
	return a, err
}

// fill creates the maps.
func (p *pool) fill() error {
	for _, s := range Maps() {
		m, err := bpf.NewMap(s, twinCPUs, p)
		if err != nil {
			return err
		}
		p.maps = append(p.maps, m)
	}
	return nil
}

// Compare runs a program with the maps of Maps in both back ends, and returns
// the first difference in result, fault, stack, context or any byte of the maps.
// The program is compiled both with the proven facts about it and without any.
func (w *Twin) Compare(prog asm.Instructions, kind bpf.Kind, runs int) error {
	for _, full := range []bool{false, true} {
		if err := w.compare(prog, kind, runs, full); err != nil {
			return fmt.Errorf("with all checks %v: %w\n%v", full, err, prog)
		}
	}
	return nil
}

func (w *Twin) compare(prog asm.Instructions, kind bpf.Kind, runs int, full bool) (err error) {
	if err := w.renewMaps(); err != nil {
		return err
	}
	if w.Ended == nil {
		w.Ended = map[string]int{}
	}
	budget := w.Budget
	if budget == 0 {
		budget = 3000 + 4<<14
	}
	a, err := bpf.New(bpf.Spec{Kind: kind, Insns: prog, Maps: w.host.maps, Budget: budget})
	if refused := (*bpf.CheckError)(nil); errors.As(err, &refused) {
		w.Refused++
		return nil
	} else if err != nil {
		return err
	}
	b, err := bpf.New(bpf.Spec{Kind: kind, Insns: prog, Maps: w.own.maps, Budget: budget})
	if err != nil {
		return err
	}
	code, err := bpf.LoadOn(w.Runner, b, bpf.Layout{Fixups: true, NoGuest: true, Full: full}, bpf.BlockConfig{CPU: twinCPU}, kind.ContextSize())
	if host := (*bpf.HostOnlyError)(nil); errors.As(err, &host) {
		w.HostOnly++
		return nil
	} else if err != nil {
		return err
	}
	if code.Info.Small {
		w.Small++
	}
	v := bpf.NewVM(a, twinCPU)
	hostStack, stack := v.Stack(), bpf.BlockStack(code.Block)
	for i := range stack {
		hostStack[i], stack[i] = byte(i), byte(i)
	}
	ctx := make([]byte, kind.ContextSize())
	for i := range ctx {
		ctx[i] = byte(3 * i)
	}
	ctx2 := bytes.Clone(ctx)
	var answers [4]uint64
	for run := range runs {
		want, err0 := v.Run(ctx, bpf.NoEnv{})
		got, err1 := code.Run(ctx2)
		f0, f1 := faultOf(err0), faultOf(err1)
		if f1 == nil {
			return fmt.Errorf("run %d: %w", run, err1)
		}
		w.Runs++
		w.Ended[f0.Code.String()]++
		if err0 == nil {
			answers[want&3]++
		}
		stats := v.Stats()
		done, failed, missed, _ := bpf.BlockStats(code.Block)
		switch {
		case want != got || *f0 != *f1:
			return fmt.Errorf("run %d: interpreter %#x %v, compiled %#x %v", run, want, err0, got, err1)
		case !bytes.Equal(ctx, ctx2):
			return fmt.Errorf("run %d: contexts differ", run)
		case !code.Info.OwnStack && !bytes.Equal(hostStack, stack):
			return fmt.Errorf("run %d: stacks differ", run)
		case done != stats.Runs || failed != stats.Failures() || missed != 0 || bpf.BlockAnswers(code.Block) != answers:
			return fmt.Errorf("run %d: block counts %d runs, %d failed, %d missed, answers %d; want %d, %d, 0, %d",
				run, done, failed, missed, bpf.BlockAnswers(code.Block), stats.Runs, stats.Failures(), answers)
		}
		for i, a := range w.host.areas {
			if !bytes.Equal(a.Bytes, w.own.areas[i].Bytes) {
				return fmt.Errorf("run %d: maps %s differ", run, w.host.maps[i].Spec().Name)
			}
		}
	}
	return nil
}

// faultOf returns the fault that ended a run, a zero one without an error, or
// nil when the error is not a fault.
func faultOf(err error) *bpf.Fault {
	f := new(bpf.Fault)
	if err != nil && !errors.As(err, &f) {
		return nil
	}
	return f
}
