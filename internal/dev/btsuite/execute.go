package btsuite

import (
	"errors"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/script"
)

// onHost reports whether a script has no probes that a guest must hit.
func onHost(s *script.Script) bool {
	return s.Probes == 0 && len(s.Samples) == 0 && len(s.Exits) == 0 && len(s.Events) == 0
}

// maxTicks bounds the runs of intervals.
const maxTicks = 200

// hostEnv is the environment of programs on the host: a clock that advances at
// each reading, and no guest.
type hostEnv struct {
	bpf.NoEnv
	now uint64
}

func (e *hostEnv) Now() uint64 {
	e.now += 1000
	return e.now
}

func (e *hostEnv) Comm(b *[16]byte) {
	clear(b[:])
	copy(b[:], "guestprobe")
}

// runner runs the programs of one script.
type runner struct {
	s      *script.Script
	col    *bpf.Collection
	print  *script.Printer
	vm     *bpf.VM
	env    hostEnv
	out    strings.Builder
	exited bool
	status int64
}

// execute runs a script of BEGIN, END and intervals, and returns its output.
func execute(s *script.Script, json, quiet bool) (out string, status int64, err error) {
	col, err := s.Object.Load(2, bpf.Heap{}, 0)
	if err != nil {
		return "", 0, err
	}
	defer col.Close()
	r := &runner{s: s, col: col, vm: bpf.NewVM(nil, 0)}
	write := func(t string) { r.out.WriteString(t) }
	r.print = s.NewPrinter(func(name string) *bpf.Map { return col.Maps[name] }, &target{}, json, func(f func(bool)) { f(true) }, write, func(t string) { write(t + "\n") })
	for _, w := range s.Warnings {
		write(w + "\n")
	}
	if n := s.CountProbes(); !quiet && json {
		r.print.PrintAttached(n)
	} else if !quiet {
		write(fmt.Sprintf("Attached %d probe%s\n", n, map[bool]string{true: "", false: "s"}[n == 1]))
	}
	if err := r.runAll(); err != nil {
		return r.out.String(), r.status, err
	}
	if !json {
		write("\n\n")
	}
	r.print.PrintMaps()
	for _, p := range r.print.Problems(true) {
		write(p + "\n")
	}
	return r.out.String(), r.status, nil
}

// runAll runs all programs in their order.
func (r *runner) runAll() error {
	for _, name := range r.s.Begin {
		if err := r.run(name); err != nil {
			return err
		}
	}
	next := make([]uint64, len(r.s.Intervals))
	for range maxTicks {
		at := -1
		for i, x := range r.s.Intervals {
			if due := next[i] + uint64(x.Period); at < 0 || due < next[at]+uint64(r.s.Intervals[at].Period) {
				at = i
			}
		}
		if at < 0 || r.exited {
			break
		}
		next[at] += uint64(r.s.Intervals[at].Period)
		r.env.now = max(r.env.now, next[at])
		if err := r.run(r.s.Intervals[at].Program); err != nil {
			return err
		}
	}
	for _, name := range r.s.End {
		if err := r.run(name); err != nil {
			return err
		}
	}
	return nil
}

// run runs one program, and prints its output.
func (r *runner) run(name string) error {
	for _, p := range r.col.Programs {
		if p.Name() != name || r.exited && !strings.HasPrefix(name, "end") {
			continue
		}
		var context [bpf.ReturnSize]byte
		entry := make([]byte, bpf.EntrySize)
		regs := &x86.Regs{}
		bpf.PutEntry(entry, r.env.now, regs)
		r.vm.Use(p.Program)
		_, err := r.vm.Run(p.PutContext(context[:], &r.env, regs, 8, 16, entry), &r.env)
		r.vm.Leave()
		var fault *bpf.Fault
		if errors.As(err, &fault) {
			r.out.WriteString(r.s.Source(p.Name(), fault.PC, fault.Code.String()) + "\n")
		}
		if err := r.drain(); err != nil {
			return err
		}
	}
	return nil
}

// drain prints the records of the ring.
func (r *runner) drain() error {
	var records [][]byte
	for _, m := range r.col.Maps {
		if m.Spec().Kind == bpf.RingBuf {
			m.Drain(func(rec bpf.Record) bool {
				records = append(records, append([]byte(nil), rec.Data...))
				return true
			})
		}
	}
	for i, data := range records {
		if status, ok := r.s.Exit(data); ok && !r.exited {
			r.status, r.exited = status, true
		}
		var next []byte
		if i+1 < len(records) {
			next = records[i+1]
		}
		if err := r.print.Record(data, next); err != nil {
			return err
		}
	}
	return nil
}
