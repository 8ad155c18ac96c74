package evbpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

func randomFetch(r *rand.Rand, depth int) string {
	pick := func(s ...string) string { return s[r.IntN(len(s))] }
	if depth > 0 && r.IntN(3) > 0 {
		off := fmt.Sprintf("%d", r.IntN(64))
		if r.IntN(8) == 0 {
			off = pick("0x1000", "4097", "0x7fffffff8", "0")
		}
		return pick("+", "-", "+u", "-u", "+", "+") + off + "(" + randomFetch(r, depth-1) + ")"
	}
	return pick("%"+event.Reg(r.IntN(21)).String(), "%di", "%si", "$stack", fmt.Sprintf("$stack%d", r.IntN(600)), fmt.Sprintf("$arg%d", 1+r.IntN(9)),
		fmt.Sprintf(`\%d`, r.Int64()), fmt.Sprintf(`\-%d`, r.IntN(1000)), fmt.Sprintf("@0x%x", int(mapped)-64+r.IntN(2*page+128)), "@_sdata+8")
}

func randomType(r *rand.Rand) string {
	types := []string{"char", "symbol", "symstr", "string", "ustring", "string", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "x8", "x32", "x64"}
	t := types[r.IntN(len(types))]
	if r.IntN(5) == 0 {
		size := 8 << r.IntN(4)
		w := 1 + r.IntN(size)
		t = fmt.Sprintf("b%d@%d/%d", w, r.IntN(size-w+1), size)
	}
	if r.IntN(3) == 0 {
		t += fmt.Sprintf("[%d]", 1+r.IntN(12))
	}
	return t
}

func randomDef(r *rand.Rand) *event.Def {
	for {
		s := "p:e vfs_read"
		if r.IntN(3) == 0 {
			s = "r:e vfs_read"
			if r.IntN(2) == 0 {
				s += " $retval:" + randomType(r)
			}
		}
		for range r.IntN(5) {
			switch arg := ""; r.IntN(12) {
			case 0:
				s += " $comm"
			case 1:
				s += ` \"literal-text"`
			default:
				if arg = randomFetch(r, 3); r.IntN(5) > 0 {
					arg += ":" + randomType(r)
				}
				s += " " + arg
			}
		}
		if d, err := event.ParseIn(s, image{}); err == nil {
			return d
		}
	}
}

func randomFilter(r *rand.Rand, f *event.Fetcher, depth int) string {
	if depth > 0 && r.IntN(2) == 0 {
		x, y := randomFilter(r, f, depth-1), randomFilter(r, f, depth-1)
		return []string{x + " && " + y, x + " || " + y, "(" + x + " || " + y + ") && " + x, "!(" + x + ")", "!" + x}[r.IntN(5)]
	}
	names := []string{"cpu", "common_pid", "comm", "common_flags", "__probe_ip"}
	if f.Def().Kind == event.KindReturn {
		names = append(names[:4], "__probe_func", "__probe_ret_ip")
	}
	for _, a := range f.Def().Args {
		names = append(names, a.Name, a.Name)
	}
	for {
		ops := []string{"==", "!=", "<", "<=", ">", ">=", "&"}
		values := []string{"0", "1", "5", "-3", "100", "255", "0x10000", "0x11000", "0x1ffff", "9223372036854775807", "0xffffffff81001000"}
		if r.IntN(2) == 0 {
			ops = []string{"==", "!=", "~"}
			values = []string{`"textual"`, `""`, `"*"`, `"*t*"`, `"tex*"`, `"*al"`, `"l?n*"`, `"literal-text"`, `"t[e-x]*l"`, `"task3"`, `"task*"`, `"*sk*"`, `"*long text *"`, `"a*b"`}
		}
		s := fmt.Sprintf("%s %s %s", names[r.IntN(len(names))], ops[r.IntN(len(ops))], values[r.IntN(len(values))])
		if _, err := f.Filter(s, 1); err == nil {
			return s
		}
	}
}

// rig is one definition, as the host captures it and as a program.
type rig struct {
	f      *event.Fetcher
	filter *event.Filter
	prog   *bpf.Program
	maps   Maps
	vm     *bpf.VM
	buf    []byte
	ctx    []byte

	entry []byte // of an r definition: what the host keeps, the time first
}

const ringSize = 1 << 18

func newRig(t testing.TB, d *event.Def, filter string, opt event.Options) (*rig, error) {
	t.Helper()
	f, err := event.Compile(d, image{}, opt)
	if err != nil {
		t.Fatalf("%s: %v", d, err)
	}
	r := &rig{f: f, buf: make([]byte, f.BufSize()), ctx: make([]byte, bpf.ReturnSize), entry: make([]byte, 8+f.EntrySize())}
	if d.Kind != event.KindReturn {
		r.ctx = r.ctx[:bpf.RegsSize]
	}
	if filter != "" {
		if r.filter, err = f.Filter(filter, 2); err != nil {
			t.Fatalf("%s: %v", filter, err)
		}
	}
	u, err := New(f, r.filter)
	if err != nil {
		return nil, err
	}
	mem := &shared{}
	for _, m := range []struct {
		to   **bpf.Map
		spec bpf.MapSpec
	}{
		{&r.maps.State, u.State()}, {&r.maps.Ring, bpf.MapSpec{Name: "ring", Kind: bpf.RingBuf, MaxEntries: ringSize}}, {&r.maps.Gate, GateSpec},
	} {
		if *m.to, err = bpf.NewMap(m.spec, 2, mem); err != nil {
			t.Fatal(err)
		}
	}
	r.open(t, 1)
	if r.prog, err = u.Program(text, 0xabcd, r.maps); err != nil {
		t.Fatalf("%s filter %q: %v", d, filter, err)
	}
	r.vm = bpf.NewVM(r.prog, 1)
	return r, nil
}

func (r *rig) open(t testing.TB, v byte) {
	if err := r.maps.Gate.Update(make([]byte, 4), [][]byte{{v, 0, 0, 0, 0, 0, 0, 0}}, 0); err != nil {
		t.Fatal(err)
	}
}

// run runs the program and returns its record, if any.
func (r *rig) run(t testing.TB, c *probe.Context) (passed bool, rec []byte) {
	t.Helper()
	cs, ss := uint16(0x08), uint16(0x10)
	if c.CPL != 0 {
		cs, ss = 0x23, 0x1b
	}
	bpf.PutRegs(r.ctx, c.Regs, cs, ss)
	r0, err := r.vm.Run(r.ctx, &env{c: c})
	if err != nil {
		t.Fatalf("%s: %v", r.f.Def(), err)
	}
	r.maps.Ring.Drain(func(b bpf.Record) bool {
		p, ok := ParseRecord(b.Data)
		if !ok || rec != nil || p.Time != 0x1122334455667788 || p.CPU != 1 || p.Tag != 0xabcd || b.CPU != 1 {
			t.Fatalf("%s: prefix %+v of vCPU %d", r.f.Def(), p, b.CPU)
		}
		rec = bytes.Clone(p.Data)
		return true
	})
	return r0 == 1, rec
}

// entered is the time of the entry of an r definition.
const entered = 0x1122334400000000

// enter keeps what an r definition has at the entry.
func (r *rig) enter(c *probe.Context) {
	if r.f.Def().Kind != event.KindReturn {
		return
	}
	le.PutUint64(r.entry, entered)
	r.f.CaptureEntry(c, r.entry[8:])
	bpf.PutEntry(r.ctx[bpf.RegsSize:], entered, c.Regs)
}

// match and capture are what the host does.
func (r *rig) match(c *probe.Context) bool {
	switch {
	case r.filter == nil:
		return true
	case r.f.Def().Kind == event.KindReturn:
		return r.filter.MatchReturn(c, r.entry)
	}
	return r.filter.Match(c)
}

func (r *rig) capture(c *probe.Context) int {
	if r.f.Def().Kind != event.KindReturn {
		return r.f.Capture(c, r.buf)
	}
	n := r.f.CaptureReturn(c, r.entry[8:], r.buf)
	now := (&env{}).Now()
	le.PutUint64(r.buf[r.f.Plan().Duration:], now-entered)
	return n
}

var le = binary.LittleEndian

// check compares one hit.
func (r *rig) check(t testing.TB, c *probe.Context) (passed bool) {
	t.Helper()
	want := r.match(c)
	got, rec := r.run(t, c)
	if got != want {
		n := r.capture(c)
		d, _ := r.f.Decode(r.buf[:n])
		t.Fatalf("%s\nfilter %s: the program says %v, the host %v\n%s", r.f.Def(), r.filter, got, want, r.f.AppendArgs(nil, d))
	}
	if !want {
		if rec != nil {
			t.Fatalf("%s: a record of a hit that was filtered", r.f.Def())
		}
		return false
	}
	for i := range r.buf {
		r.buf[i] = 0xa5
	}
	if n := r.capture(c); !bytes.Equal(rec, r.buf[:n]) {
		h, _ := r.f.Decode(r.buf[:n])
		text := "no record"
		if p, err := r.f.Decode(rec); err == nil {
			text = string(r.f.AppendArgs(nil, p))
		}
		t.Fatalf("%s\nhost    %x\n        %s\nprogram %x\n        %s", r.f.Def(), r.buf[:n], r.f.AppendArgs(nil, h), rec, text)
	}
	return true
}

func differential(t *testing.T, seed uint64, rounds int) (programs, passed int) {
	r := rand.New(rand.NewPCG(seed, 3))
	inHandler(t, newTarget(r), func(c *probe.Context) {
		for range rounds {
			d := randomDef(r)
			opt := event.Options{Profile: task{}, Regs: r.IntN(3) == 0}
			filter := ""
			if r.IntN(2) == 0 {
				f, err := event.Compile(d, image{}, opt)
				if err != nil {
					t.Fatal(err)
				}
				filter = randomFilter(r, f, 3)
			}
			rig, err := newRig(t, d, filter, opt)
			if err != nil {
				var why *HostError
				if !errors.As(err, &why) {
					t.Fatalf("%s: %v", d, err)
				}
				continue
			}
			if place, err := bpf.Where(rig.prog, bpf.Layout{Fixups: true, Task: &bpf.TaskProfile{}}); place != bpf.InGuest {
				t.Fatalf("%s filter %q: %v", d, filter, err)
			}
			programs++
			for range 6 {
				at := *c
				at.Regs = randomRegs(r)
				at.CPL = uint8(3 * r.IntN(2))
				rig.enter(&at)
				at.Regs = randomRegs(r)
				if rig.check(t, &at) && filter != "" {
					passed++
				}
			}
		}
	})
	return programs, passed
}

// TestDifferential wants of programs for random definitions, filters, registers
// and memory the very bytes that the host captures.
func TestDifferential(t *testing.T) {
	programs, passed := 0, 0
	const seeds, rounds = 30, 40
	for seed := range uint64(seeds) {
		n, m := differential(t, seed, rounds)
		programs, passed = programs+n, passed+m
	}
	if programs < seeds*rounds*3/4 {
		t.Errorf("%d of %d definitions became programs: the test says little", programs, seeds*rounds)
	}
	if passed < programs/2 || passed > programs*5/2 {
		t.Errorf("%d hits of %d programs passed their filters: the test says little", passed, programs)
	}
}

func FuzzDifferential(f *testing.F) {
	f.Add(uint64(1))
	f.Add(uint64(1 << 40))
	f.Fuzz(func(t *testing.T, seed uint64) { differential(t, seed, 4) })
}

// TestOnHost wants a reason for what is no program.
func TestOnHost(t *testing.T) {
	for _, tt := range []struct{ def, filter, want string }{
		{"r:e vfs_read $retval a=$arg6", "", ""},
		{"r:e vfs_read $retval a=$arg7", "", "runs on the host: what it keeps at the entry is not an argument in a register"},
		{"w:e rw@_sdata:8", "", "runs on the host: a watch has no instruction of its own that could be replaced"},
		{"p:e vfs_read" + strings.Repeat(" +0(%di):string", 16), "", "runs on the host: its 16 texts can take more than a record holds"},
		{"p:e vfs_read" + strings.Repeat(" +0(%di):string", 15), "", ""},
		{"p:e vfs_read s=+0(%di):string", `s ~ "a?c"`, `runs on the host: the filter's pattern "a?c" has more than * in it`},
		{"p:e vfs_read s=+0(%di):string", `s ~ "[ab]*"`, `runs on the host: the filter's pattern "[ab]*" has more than * in it`},
		{"p:e vfs_read s=+0(%di):string", `cpu == 0 || s ~ "a*c"`, `runs on the host: the filter's pattern "a*c" has a * between other characters`},
		{"p:e vfs_read s=+0(%di):string", `s ~ "*12345678901234567*"`, `runs on the host: the filter's pattern "*12345678901234567*" looks for more than 16 characters anywhere`},
		{"p:e vfs_read s=+0(%di):string", `s ~ "*1234567890123456*"`, ""},
	} {
		d, err := event.ParseIn(tt.def, image{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = newRig(t, d, tt.filter, event.Options{})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != tt.want) {
			t.Errorf("%s filter %q: %v, want %s", tt.def, tt.filter, err, tt.want)
		}
	}
}

// TestCounts wants every hit counted once: filtered, stored, lost, or, with the
// gate closed, not at all.
func TestCounts(t *testing.T) {
	for _, def := range []string{"p:e vfs_read a=%di", "p:e vfs_read a=%di s=+0(%si):string"} {
		d, err := event.ParseIn(def, image{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := newRig(t, d, "a > 10", event.Options{})
		if err != nil {
			t.Fatal(err)
		}
		inHandler(t, newTarget(rand.New(rand.NewPCG(1, 1))), func(c *probe.Context) {
			hit := func(n int, di uint64) {
				c.Regs.RDI = di
				for range n {
					bpf.PutRegs(r.ctx, c.Regs, 8, 16)
					if _, err := r.vm.Run(r.ctx, &env{c: c}); err != nil {
						t.Error(err)
					}
				}
			}
			hit(3, 10)
			hit(20000, 11)
			r.open(t, 0)
			hit(5, 11)
			hit(5, 1)
		})
		got, err := ReadCounts(r.maps.State)
		if err != nil {
			t.Fatal(err)
		}
		stored := 0
		r.maps.Ring.Drain(func(bpf.Record) bool { stored++; return true })
		want := Counts{Filtered: 8, Stored: uint64(stored), Lost: uint64(20000 - stored)}
		if stored == 0 || stored == 20000 || got[1] != want || got[0] != (Counts{}) || r.maps.Ring.RingStats().Lost != want.Lost {
			t.Errorf("%s: %+v, want %+v and nothing of vCPU 0", def, got, want)
		}
	}
}

// TestRecordBounds wants no record of what is too short for one.
func TestRecordBounds(t *testing.T) {
	for n, want := range map[int]bool{0: false, 31: false, 32: true} {
		if _, ok := ParseRecord(make([]byte, n)); ok != want {
			t.Errorf("%d bytes: %v, want %v", n, ok, want)
		}
	}
}

func BenchmarkInterpreter(b *testing.B) {
	d, err := event.ParseIn("p:e vfs_read a=%di b=%si c=%dx d=%cx e=%r8 f=%r9", image{})
	if err != nil {
		b.Fatal(err)
	}
	r, err := newRig(b, d, "a > 10 && b != 0", event.Options{})
	if err != nil {
		b.Fatal(err)
	}
	inHandler(b, newTarget(rand.New(rand.NewPCG(1, 1))), func(c *probe.Context) {
		c.Regs.RDI, c.Regs.RSI = 11, 1
		e := &env{c: c}
		bpf.PutRegs(r.ctx, c.Regs, 8, 16)
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			if _, err := r.vm.Run(r.ctx, e); err != nil {
				b.Fatal(err)
			}
			if n++; n%256 == 0 {
				r.maps.Ring.Drain(func(bpf.Record) bool { return true })
			}
		}
	})
}
