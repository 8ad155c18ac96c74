package http

import (
	"cmp"
	"context"
	"debug/elf"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/server/saved"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/linuxtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// What is called, and how often: a system call that does little.
const (
	costFunction = "__x64_sys_getppid"
	costNumber   = 110 // its number (arch/x86/entry/syscalls/syscall_64.tbl)
	costCalls    = 1000
	costRuns     = 5
	costLoop     = 100000 // turns of two instructions, which say what a tick is
)

// costScript does what it is told at the console.
const costScript = `t=/sys/kernel/tracing
echo READY
while read -r n what; do
	case $what in
	calls) echo "TICKS $(/calls | hexdump -v -e '4/4 "%u "')" ;;
	off) [ ! -e $t/events/kprobes/enable ] || echo 0 >$t/events/kprobes/enable; echo >$t/kprobe_events ;;
	list) cat /sys/kernel/debug/kprobes/list ;;
	optimize*) echo "${what#optimize }" >/proc/sys/debug/kprobes-optimization ;;
	*) echo "$what" >$t/kprobe_events && echo 1 >$t/events/kprobes/enable && sleep 1 ;;
	esac
	echo "DID $n"
done
`

// costCaller is a program that makes the calls, and writes how many ticks its loop took,
// and they.
func costCaller() []byte {
	const base = 0x400000 + 64 + 56 // behind the headers, at the same place in its page
	ticks := func(a *x86.Asm, r x86.Reg64) {
		a.Rdtsc()
		a.Shl(8, x86.RDX, x86.Imm(32))
		a.Or(8, x86.RAX, x86.RDX)
		a.Mov(8, r, x86.RAX)
	}
	loop := func(a *x86.Asm, n int32, body func()) {
		a.Mov(4, x86.RBX, x86.Imm(n))
		again := a.LabelHere()
		body()
		a.Dec(4, x86.RBX)
		a.Jcc(x86.CondNE, again)
	}
	code := x86.Assemble(func(a *x86.Asm) {
		call := func() { a.Mov(4, x86.RAX, x86.Imm(costNumber)); a.Syscall() }
		ticks(a, x86.R12)
		loop(a, costLoop, func() {})
		ticks(a, x86.R13)
		a.Sub(8, x86.R13, x86.R12)
		loop(a, costCalls/10, call)
		ticks(a, x86.R12)
		loop(a, costCalls, call)
		ticks(a, x86.R14)
		a.Sub(8, x86.R14, x86.R12)
		a.Push(x86.R14)
		a.Push(x86.R13)
		a.Mov(4, x86.RDI, x86.Imm(1)) // write(1, stack, 16)
		a.Mov(8, x86.RSI, x86.RSP)
		a.Mov(4, x86.RDX, x86.Imm(16))
		a.Mov(4, x86.RAX, x86.Imm(1))
		a.Syscall()
		a.Xor(4, x86.RDI, x86.RDI) // exit(0)
		a.Mov(4, x86.RAX, x86.Imm(60))
		a.Syscall()
	})
	f := &elfbuild.File{Entry: base, Segments: []elfbuild.Segment{{VAddr: base, Flags: elf.PF_R | elf.PF_X, Data: code}}}
	return f.Bytes()
}

// costGuest is a guest that makes the calls.
type costGuest struct {
	*harness
	lines interface {
		C() <-chan machine.ConsoleLine
	}
	perNs float64 // ticks of its clock in a nanosecond of the host's
	tick  float64 // ticks that an instruction takes
	asked int
	deaf  func() // ends the stream of a kind, unless nil
}

func newCostGuest(t *testing.T, dir string, changes ...func(*options)) *costGuest {
	t.Helper()
	initrd, err := os.ReadFile(filepath.Join(dir, "initrd"))
	if err != nil {
		t.Fatal(err)
	}
	initrd, err = linuxtest.AddFiles(initrd, fstest.MapFS{"calls": {Data: costCaller()}, "cost.sh": {Data: []byte(costScript)}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "initrd")
	if err := os.WriteFile(name, initrd, 0o600); err != nil {
		t.Fatal(err)
	}
	g := &costGuest{}
	g.harness = serveLinux(t, dir, "stty -echo; sh /cost.sh", append(changes, func(o *options) { o.initrd, o.paused, o.timeHits = name, true, true })...)
	g.lines, _ = g.s.guest.Console(1 << 14)
	c, err := g.s.guest.(interface {
		Clock(func() int64) (machine.Clock, error)
	}).Clock(func() int64 { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	g.perNs = float64(c.KHz) / 1e6
	return g
}

// line waits for a line that begins with prefix, and returns the rest of it.
func (g *costGuest) line(prefix string) string {
	g.Helper()
	ctx, cancel := context.WithTimeout(g.ctx, 5*time.Minute)
	defer cancel()
	var said []string
	for {
		select {
		case l, ok := <-g.lines.C():
			if rest, found := strings.CutPrefix(l.Text, prefix); ok && found {
				return rest
			} else if said = append(said, l.Text); ok {
				continue
			}
		case <-ctx.Done():
		}
		g.Fatalf("no line %q:\n%s", prefix, strings.Join(said[max(0, len(said)-50):], "\n"))
	}
}

// ask has the guest do something, and returns what it says with that prefix.
func (g *costGuest) ask(what, prefix string) (said string) {
	g.Helper()
	g.asked++
	if _, err := g.s.guest.Input(g.ctx, fmt.Appendf(nil, "%d %s\n", g.asked, what)); err != nil {
		g.Fatal(err)
	}
	if prefix != "" {
		said = g.line(prefix)
	}
	g.line(fmt.Sprintf("DID %d", g.asked))
	return said
}

// cost is what a call costs: instructions in all, of these outside of KVM_RUN, and exits.
type cost struct{ all, outside, exits float64 }

// measure makes the calls several times.
func (g *costGuest) measure() (median cost, lo, hi float64) {
	g.Helper()
	var all []cost
	for range costRuns {
		before := g.s.guest.Stats().VCPUs[0]
		var said [4]uint32 // two numbers of 64 bits
		if _, err := fmt.Sscan(g.ask("calls", "TICKS "), &said[0], &said[1], &said[2], &said[3]); err != nil {
			g.Fatal(err)
		}
		loop, ticks := float64(uint64(said[1])<<32|uint64(said[0])), float64(uint64(said[3])<<32|uint64(said[2]))
		after := g.s.guest.Stats().VCPUs[0]
		g.tick = loop / (2 * costLoop)
		const calls = costCalls + costCalls/10
		all = append(all, cost{ticks / costCalls, float64(after.TrapNs-before.TrapNs) * g.perNs / calls, float64(after.TrapExits-before.TrapExits) / calls})
	}
	slices.SortFunc(all, func(a, b cost) int { return cmp.Compare(a.all, b.all) })
	return all[len(all)/2], all[0].all, all[len(all)-1].all
}

// costKind is a way to probe the function: by us, or with an event of the guest's own kernel.
type costKind struct {
	what     string
	def      string // ours, where FUNC and PLACE stand for the function and an instruction in it
	program  string // an object of ours, with its sections at the function, or
	at       string // at what stands for it
	own      string // the kernel's
	onHost   bool
	optimize bool
	listen   bool
	beside   int // the kind that does the same in the kernel, by its place in costKinds
}

var costKinds = []costKind{
	{what: "the kernel's kprobe, by int3, with an event", own: "p:own PLACE", beside: -1},
	{what: "the kernel's optimized kprobe, with an event", own: "p:own PLACE", optimize: true, beside: -1},
	{what: "the kernel's kprobe at the entry, by ftrace, with an event", own: "p:own FUNC", optimize: true, beside: -1},
	{what: "the kernel's kretprobe, with an event", own: "r:own FUNC", optimize: true, beside: -1},
	{what: "int3, handler on the host", def: "p:cost PLACE", onHost: true, beside: 0},
	{what: "jump, handler on the host", def: "p:cost PLACE", onHost: true, optimize: true, beside: 1},
	{what: "jump, definition in the guest, no client: a count", def: "p:cost PLACE", optimize: true, beside: 1},
	{what: "jump, definition in the guest, its events read", def: "p:cost PLACE", optimize: true, listen: true, beside: 1},
	{what: "jump, program in the guest: counts in an array and in a hash", program: "count.o", at: "PLACE", optimize: true, beside: 1},
	{what: "jump at the entry, definition in the guest: a count", def: "p:cost FUNC", optimize: true, beside: 2},
	{what: "kretprobe, handler on the host", def: "r:cost FUNC", onHost: true, optimize: true, beside: 3},
	{what: "kretprobe, definition in the guest: a count", def: "r:cost FUNC", optimize: true, beside: 3},
	{what: "two programs in the guest: a histogram of durations", program: "latency.o", at: "vfs_read=FUNC", optimize: true, beside: 3},
}

// TestLinuxCost says what probes of a Linux guest cost, beside those of its own kernel, as
// lines of a table behind GP-COST: scripts/bench-linux.sh makes them a part of
// docs/benchmarks.md. On a host that counts instructions as its time these are exact.
func TestLinuxCost(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { linuxCost(t, dir) })
	}
}

func linuxCost(t *testing.T, dir string) {
	g := newCostGuest(t, dir)
	g.boot()
	place := g.place()
	words := strings.NewReplacer("FUNC", costFunction, "PLACE", place)
	base, lo, hi := g.measure()
	fmt.Printf("GP-COST-OF %s %.4f\n", filepath.Base(dir), g.tick)
	least := lo
	costRow("call of `getppid`, not probed", fmt.Sprintf("%.0f (%.0f to %.0f)", base.all, lo, hi), "-", "-", "-")
	added := make([]float64, len(costKinds))
	for i, k := range costKinds {
		hits := g.arrange(k, words)
		c, lo, hi := g.measure()
		if n := hits(); n < costRuns*costCalls {
			t.Errorf("%s: %d hits", k.what, n)
		}
		added[i] = c.all - base.all
		ratio, outside, exits := "-", "-", "-"
		if k.beside >= 0 {
			ratio, outside, exits = fmt.Sprintf("%.2f", added[i]/added[k.beside]), fmt.Sprintf("%.0f", c.outside), fmt.Sprintf("%.2f", c.exits)
		}
		costRow(k.what, fmt.Sprintf("%.0f (%.0f to %.0f)", added[i], lo-base.all, hi-base.all), outside, exits, ratio)
		// An emulated host's own work is in the figures, more of it than a count in the guest costs.
		if hi <= least {
			t.Errorf("%s: at most %.0f instructions for a call, and %.0f at least for one that is not probed", k.what, hi, least)
		}
		g.clear(k)
	}
}

// costRow prints a row of the table.
func costRow(what, all, outside, exits, ratio string) {
	fmt.Printf("GP-COST | %s | %s | %s | %s | %s |\n", what, all, outside, exits, ratio)
}

// TestLinuxCostBoot says in the same table what a boot with probes costs: without a cache, with an empty one, and with one that an earlier daemon has
// filled by a boot of the same kernel.
func TestLinuxCostBoot(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { linuxCostBoot(t, dir) })
	}
}

func linuxCostBoot(t *testing.T, dir string) {
	defs := []string{"p start_kernel", "p setup_arch", "p:initcall do_one_initcall", "p kernel_clone", "p:open do_sys_openat2", "p vfs_read"}
	var unprobed float64
	t.Run("unprobed", func(t *testing.T) { unprobed = newCostGuest(t, dir).boot() })
	costRow("boot to the first process, not probed", fmt.Sprintf("%.0f million", unprobed/1e6), "-", "-", "-")
	folder := t.TempDir()
	for _, what := range []string{"", ", with an empty cache", ", with the cache"} {
		t.Run("probed"+what, func(t *testing.T) {
			var cache *saved.Cache
			if what != "" {
				var err error
				if cache, err = saved.OpenCache(folder, slog.New(slog.DiscardHandler)); err != nil {
					t.Fatal(err)
				}
			}
			probed := newCostGuest(t, dir, func(o *options) { o.scans = cache })
			if _, err := probed.c.Attach(probed.ctx, specsOf(defs)...); err != nil {
				t.Fatal(err)
			}
			with := probed.boot()
			ps, err := probed.c.Probes(probed.ctx)
			if err != nil {
				t.Fatal(err)
			}
			var hits uint64
			for _, p := range ps {
				hits += p.Stats.Hits
			}
			cache.Close()
			costRow(fmt.Sprintf("boot to the first process, %d probes from the first instruction on, %d hits%s", len(defs), hits, what), fmt.Sprintf("%.0f million", with/1e6), "-", "-",
				fmt.Sprintf("%.2f of it not probed", with/unprobed))
		})
	}
}

func specsOf(defs []string) (specs []api.ProbeSpec) {
	for _, d := range defs {
		specs = append(specs, api.ProbeSpec{Def: d})
	}
	return specs
}

// boot lets the guest boot, and returns how many instructions that takes.
func (g *costGuest) boot() float64 {
	g.Helper()
	start := time.Now()
	if _, err := g.c.Resume(g.ctx); err != nil {
		g.Fatal(err)
	}
	g.line("READY")
	return float64(time.Since(start).Nanoseconds()) * g.perNs
}

// place finds an instruction that our optimizer and the kernel's can displace.
func (g *costGuest) place() string {
	g.Helper()
	d, err := g.c.Disas(g.ctx, costFunction, false)
	if err != nil {
		g.Fatal(err)
	}
	for _, i := range d.Insts {
		if i.Offset > 0 && i.Ours.Length > 0 && i.Kernel.Length > 0 && i.Class == "other" {
			return fmt.Sprintf("%s+%d", costFunction, i.Offset)
		}
	}
	g.Fatalf("no instruction of %s can be displaced: %+v", costFunction, d)
	return ""
}

// arrange makes the probe of a kind; hits returns how many hits of it there were.
func (g *costGuest) arrange(k costKind, words *strings.Replacer) (hits func() uint64) {
	g.Helper()
	if k.own != "" {
		n := map[bool]int{true: 1}[k.optimize]
		g.ask(fmt.Sprintf("optimize %d", n), "")
		g.ask(words.Replace(k.own), "")
		if n == 1 && strings.Contains(k.own, "PLACE") {
			if line := g.ask("list", "ffffffff"); !strings.Contains(line, "[OPTIMIZED]") {
				g.Errorf("the kernel's kprobe is not optimized: %s", line)
			}
		}
		return func() uint64 { return costRuns * costCalls }
	}
	if _, err := g.c.SetOptimization(g.ctx, api.SetOptimization{Enabled: &k.optimize}); err != nil {
		g.Fatal(err)
	}
	var err error
	if k.program != "" {
		_, err = g.c.AttachProgram(g.ctx, api.AttachProgram{Object: objectFile(g.T, k.program), At: words.Replace(k.at)})
	} else {
		_, err = g.c.Attach(g.ctx, api.ProbeSpec{Def: words.Replace(k.def), OnHost: k.onHost})
	}
	if err != nil {
		g.Fatalf("%s: %v", k.what, err)
	}
	if k.listen {
		ctx, cancel := context.WithCancel(g.ctx)
		s, err := g.c.Events(ctx, api.StreamEvents{})
		if err != nil {
			g.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				if _, err := s.Next(); err != nil {
					return
				}
			}
		}()
		g.deaf = func() { cancel(); <-done; s.Close(); g.deaf = nil }
	}
	if k.optimize {
		if _, err := g.c.SetOptimization(g.ctx, api.SetOptimization{Now: true}); err != nil {
			g.Fatal(err)
		}
	}
	ps, err := g.c.Probes(g.ctx)
	if err != nil {
		g.Fatal(err)
	}
	for _, p := range ps {
		if p.Optimized != k.optimize || (p.Runs == api.RunsOnHost) == (k.optimize && !k.onHost) {
			g.Errorf("%s: %s is optimized: %v (%+v), and runs on the %s: %s", k.what, p.Name, p.Optimized, p.Unoptimized, p.Runs, p.OnHost)
		}
	}
	return func() uint64 {
		p, err := g.c.Probe(g.ctx, ps[0].Name)
		if err != nil {
			g.Fatal(err)
		}
		return p.Stats.Hits
	}
}

// clear takes the probe of a kind away.
func (g *costGuest) clear(k costKind) {
	g.Helper()
	if g.deaf != nil {
		g.deaf()
	}
	if k.own != "" {
		g.ask("off", "")
	} else if _, err := g.c.DetachAll(g.ctx); err != nil {
		g.Fatal(err)
	}
}
