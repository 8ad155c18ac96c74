package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/internal/dev/oracle"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

// Options say how guests are run.
type Options struct {
	VCPUs   int           // 0 stands for 2
	Tick    time.Duration // between timer interrupts; 0 stands for DefaultTick
	Timeout time.Duration // of one guest; 0 means defaultTimeout
	KVMPath string        // the KVM device; "" means /dev/kvm
	Host    *host.Report
	NoSteps bool // leave out programs that step themselves
	Classes Class
	NoBits  bool // leave out bit tests, after which flags other than CF and ZF are undefined
}

// Defaults of Options. Tasks are short, so that ticks must be as well if they are
// to come at many places.
const (
	DefaultTick    = 200 * time.Microsecond
	defaultTimeout = 2 * time.Minute
)

// Torture runs generated guests, one after the other. It belongs to the goroutine
// that made it.
type Torture struct {
	o      Options
	oracle *oracle.Oracle
	can    Features
	m      *machine.Machine
	other  *machine.Machine // for kernel code when m is for user code, and vice versa
	kernel bool             // m is for kernel code
	defs   *definitions     // of m
	sum    Summary
}

// Summary counts the runs.
type Summary struct {
	Guests       int               `json:"guests"`
	TooLong      int               `json:"tooLong"` // programs that were not run
	Tasks        int               `json:"tasks"`
	Instructions uint64            `json:"instructions"` // of tasks, native runs
	Exceptions   uint64            `json:"exceptions"`
	Ticks        uint64            `json:"ticks"`
	Signals      uint64            `json:"signals"`
	Probes       map[string]int    `json:"probes"` // by kind and plan
	Hits         map[string]uint64 `json:"hits"`
	Refused      map[string]int    `json:"refused"`   // by reason code
	Changes      int               `json:"changes"`   // attached or detached while the guest ran
	Saves        int               `json:"saves"`     // snapshots
	Continued    int               `json:"continued"` // machines that continued from one
	Steps        int               `json:"steps"`     // instructions stepped
	Runs         int               `json:"runs"`      // to an address
	Watches      int               `json:"watches"`   // of tables and stacks
}

// New starts the native runs' process. Close ends it, and the guest.
func New(o Options) (*Torture, error) {
	if o.VCPUs == 0 {
		o.VCPUs = 2
	}
	if o.Tick == 0 {
		o.Tick = DefaultTick
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	n, err := oracle.New()
	if err != nil {
		return nil, err
	}
	t := &Torture{o: o, oracle: n, can: Features{Bits: !o.NoBits, Classes: o.Classes}, sum: Summary{Probes: map[string]int{}, Hits: map[string]uint64{}, Refused: map[string]int{}}}
	if t.can.FIP, err = keepsFIP(n); err != nil {
		n.Close()
		return nil, err
	}
	return t, nil
}

// Close ends everything.
func (t *Torture) Close() error {
	t.oracle.Close()
	if t.defs != nil {
		t.defs.close()
	}
	var bad []error
	for _, m := range []*machine.Machine{t.m, t.other} {
		if m != nil {
			bad = append(bad, m.Close(context.Background()))
		}
	}
	return errors.Join(bad...)
}

// Summary returns the counts so far.
func (t *Torture) Summary() Summary { return t.sum }

// truth is a program's expected outcome, and how often it reaches each offset of
// its text.
type truth struct {
	tasks  []outcome
	counts map[uint64]uint64
	text   []byte // in the end
}

// runAllNative runs all tasks of p without a guest; nil without an error means that they
// take too long.
func (t *Torture) runAllNative(p *Program) (*truth, error) {
	tr := &truth{counts: map[uint64]uint64{}, text: slices.Clone(p.Text)}
	for i := range p.Tasks {
		out, counts, text, err := runNative(t.oracle, p, i)
		if errors.Is(err, oracle.ErrSteps) {
			t.sum.TooLong++
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for a, n := range counts {
			tr.counts[a] += n
			t.sum.Instructions += n
		}
		for k, b := range text {
			if b != p.Text[k] {
				tr.text[k] = b
			}
		}
		t.sum.Exceptions += out.Exceptions
		tr.tasks = append(tr.tasks, out)
	}
	return tr, nil
}

// boot boots p in the machine, paused before its first instruction.
func (t *Torture) boot(ctx context.Context, p *Program) error {
	img, err := image(p)
	if err != nil {
		return err
	}
	if t.defs != nil {
		t.defs.close()
		t.defs = nil
	}
	if p.Kernel != t.kernel {
		t.kernel = p.Kernel
		t.m, t.other = t.other, t.m
	}
	if t.m != nil {
		// The memory that earlier guests' programs use is never freed.
		if t.m.SharedFree(true) < sharedNeed || t.m.SharedFree(false) < sharedNeed {
			h := t.m.Host()
			t.o.Host = &h
			if err := t.m.Close(ctx); err != nil {
				return err
			}
			t.m = nil
		}
	}
	if t.m != nil {
		err = t.m.Reset(ctx, img)
	} else {
		tick := t.o.Tick
		if p.Kernel {
			tick *= kernelTick
		}
		t.m, err = machine.New(machine.Config{Image: img, VCPUs: t.o.VCPUs, Memory: ramSize, Tick: tick, EmulatedStages: true, KVMPath: t.o.KVMPath, Host: t.o.Host})
	}
	if err != nil {
		return err
	}
	t.defs = newDefinitions(t.m, t.o.VCPUs)
	return p.fill(t.m)
}

// kernelTick is how many times longer it is between two ticks where all code is the
// kernel's: a host that emulates it must come to the tick handler's end before the next.
const kernelTick = 10

// sharedNeed is how much of the memory that host and guest share one guest's probes
// use at most.
const sharedNeed = 40 << 20

// Run makes the guest of a seed and runs it: without probes, with probes that
// are attached before its first instruction and stay, or with probes that come
// and go. An error describes the differences from the native run.
func (t *Torture) Run(ctx context.Context, seed uint64, how How) error {
	if err := t.run(ctx, seed, how); err != nil {
		return fmt.Errorf("seed %d, %v: %w", seed, how, err)
	}
	return nil
}

// How says which probes there are.
type How uint8

// The ways to run a guest.
const (
	Unprobed How = iota
	Probed       // probes from the first instruction to the end: counts are exact
	Changing     // probes come and go
	Saved        // probes stay; the guest is saved at random moments, and continues from there too
	Stepped      // probes stay; the guest is paused at random moments, and stepped
)

// ParseHow returns the way of a name.
func ParseHow(name string) (How, error) {
	for h := Unprobed; h <= Stepped; h++ {
		if h.String() == name {
			return h, nil
		}
	}
	return 0, fmt.Errorf("%q is not one of unprobed, probed, changing, saved, stepped", name)
}

// HowOf returns how the guest of a seed is run in a run over all ways that the
// classes have.
func HowOf(seed uint64, c Class) How {
	switch how := [...]How{Probed, Changing, Saved, Unprobed, Probed, Changing, Probed, Stepped}[seed%8]; {
	case how == Saved && c&Saves == 0:
		return Probed
	case how == Stepped && c&Steps == 0:
		return Unprobed
	default:
		return how
	}
}

// String returns the name that gpdev has for it.
func (h How) String() string {
	return [...]string{"unprobed", "probed", "changing", "saved", "stepped"}[h]
}

func (t *Torture) run(ctx context.Context, seed uint64, how How) error {
	p := Generate(seed, t.can)
	if p.Steps && t.o.NoSteps {
		return nil
	}
	want, err := t.runAllNative(p)
	if err != nil || want == nil {
		return err
	}
	if err := t.boot(ctx, p); err != nil {
		return err
	}
	t.sum.Guests++
	t.sum.Tasks += p.Tasks
	ctx, cancel := context.WithTimeout(ctx, t.o.Timeout)
	defer cancel()
	w := &work{t: t, p: p, want: want, Rand: rand.New(rand.NewPCG(seed, uint64(how)))}
	switch how {
	case Probed:
		err = w.runProbed(ctx)
	case Changing:
		err = w.runChanging(ctx)
	case Saved:
		err = w.runSaved(ctx)
	case Stepped:
		err = w.runStepped(ctx)
	default:
		err = t.wait(ctx)
	}
	if err == nil || t.m.Phase() == machine.PhaseExited {
		err = errors.Join(t.compare(p, want), err)
	}
	if err != nil && len(w.history) > 0 {
		err = fmt.Errorf("%w\n%s", err, strings.Join(w.history, "\n"))
	}
	return err
}

// compare compares the guest's outcome with the expected one, and its text with
// the image.
func (t *Torture) compare(p *Program, want *truth) error {
	got, n, err := p.outcomes(t.m)
	if err != nil {
		return err
	}
	t.sum.Ticks += n.Ticks
	t.sum.Signals += n.Signals
	var bad []error
	for i := range got {
		if d := got[i].diff(&want.tasks[i]); d != "" {
			bad = append(bad, fmt.Errorf("task %d: %s", i, d))
		}
	}
	return errors.Join(bad...)
}

// wait runs the guest until it ends.
func (t *Torture) wait(ctx context.Context) error {
	if err := t.m.Resume(); err != nil {
		return err
	}
	return t.awaitEnd(ctx)
}

// awaitEnd waits for the guest's end.
func (t *Torture) awaitEnd(ctx context.Context) error {
	s, err := t.m.Wait(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("the guest does not end: %w (%+v)", err, s)
	case s.Crash != nil:
		return errors.New("the guest crashed:\n" + s.Crash.String())
	case s.Phase != machine.PhaseExited || s.ExitCode != 0:
		return fmt.Errorf("the guest is %v with exit code %#x", s.Phase, s.ExitCode)
	}
	return nil
}
