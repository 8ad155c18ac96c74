package evbpf

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// randomFetch writes a fetch expression that suits a memory of small numbers.
func randomFetch(r *rand.Rand, depth int, kind event.Kind) string {
	pick := func(s ...string) string { return s[r.IntN(len(s))] }
	if depth > 0 && r.IntN(3) > 0 {
		off := fmt.Sprintf("%d", r.IntN(64))
		if r.IntN(8) == 0 {
			off = pick("0x1000", "4097", "0x7fffffff8", "0", fmt.Sprintf("0x%x", r.IntN(5000)))
		}
		return pick("+", "-", "+u", "-u", "+", "+") + off + "(" + randomFetch(r, depth-1, kind) + ")"
	}
	leaves := []string{
		"%" + event.Reg(r.IntN(21)).String(), "%di", "%si", "$stack", fmt.Sprintf("$stack%d", r.IntN(600)), fmt.Sprintf("$arg%d", 1+r.IntN(9)),
		fmt.Sprintf(`\%d`, r.Int64()), fmt.Sprintf(`\-%d`, r.IntN(1000)), fmt.Sprintf("@0x%x", int(mapped)-64+r.IntN(2*page+128)),
		"@_sdata+8", fmt.Sprintf("@_sdata+%d", r.IntN(256)), "@jiffies-8",
	}
	if kind == event.KindReturn {
		leaves = append(leaves, "$retval")
	}
	return leaves[r.IntN(len(leaves))]
}

func randomType(r *rand.Rand) string {
	types := []string{"char", "symbol", "symstr", "string", "ustring", "string", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "x8", "x16", "x32", "x64"}
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
		kind := []event.Kind{event.KindProbe, event.KindProbe, event.KindReturn, event.KindWatch}[r.IntN(4)]
		s := "p:e vfs_read"
		switch kind {
		case event.KindReturn:
			s = "r:e vfs_read"
		case event.KindWatch:
			s = []string{"w:e rw@_sdata:4", "w:e w@jiffies", "w:e x@vfs_read"}[r.IntN(3)]
		}
		for i := range r.IntN(5) {
			switch arg := ""; r.IntN(14) {
			case 2, 3:
				if kind != event.KindWatch {
					of := []string{"three", "low", "byte", "across", "wide", "flag", "small", "f_path.dentry->d_name.len"}
					s += fmt.Sprintf(" t%d=file->%s", i, of[r.IntN(len(of))])
				}
			case 0:
				s += " $comm"
			case 1:
				s += ` \"literal-text"`
			default:
				if arg = randomFetch(r, 3, kind); r.IntN(5) > 0 {
					arg += ":" + randomType(r)
				}
				s += " " + arg
			}
		}
		// Not every type goes with every expression; try again.
		if d, err := event.ParseIn(s, scope); err == nil {
			return d
		}
	}
}

func randomFilter(r *rand.Rand, l *event.Layout, depth int) string {
	if depth > 0 && r.IntN(2) == 0 {
		x, y := randomFilter(r, l, depth-1), randomFilter(r, l, depth-1)
		return []string{x + " && " + y, x + " || " + y, "(" + x + " || " + y + ") && " + x, "!(" + x + ")", "!" + x}[r.IntN(5)]
	}
	names := []string{"cpu", "common_pid", "comm", "common_flags", "common_preempt_count", "__probe_ip", "__probe_func", "__probe_ret_ip"}
	for _, x := range l.Fields {
		names = append(names, x.Name, x.Name)
	}
	for {
		ops := []string{"==", "!=", "<", "<=", ">", ">=", "&"}
		values := []string{"0", "1", "5", "-3", "100", "255", "0x10000", "0x11000", "0x1ffff", "9223372036854775807", "0xffffffff81001000"}
		if r.IntN(2) == 0 {
			ops = []string{"==", "!=", "~"}
			values = []string{
				`"textual"`, `""`, `"*"`, `"*t*"`, `"tex*"`, `"*al"`, `"l?n*"`, `"literal-text"`, `"t[e-x]*l"`, `"task3"`, `"task*"`, `"*sk*"`, `"*long text *"`, `"a*b"`,
				`"?*"`, `"[!a-l]*"`, `"*l*t*l*"`, `"t*[0-9]"`, `"*[x-]*"`, `"l*ng*"`, `"*long*ext*g"`,
			}
		}
		s := fmt.Sprintf("%s %s %s", names[r.IntN(len(names))], ops[r.IntN(len(ops))], values[r.IntN(len(values))])
		if _, err := l.Filter(s); err == nil {
			return s
		}
	}
}

// check compares one hit with the naive evaluator.
func (r *rig) check(t testing.TB, h *hit) (passed bool) {
	t.Helper()
	answer, rec := r.run(t, h)
	e := naive{mem: h.mem, regs: h.regs, cpl: h.cpl, hit: h}
	if r.def.Kind == event.KindReturn {
		e.entry = h.entry
	}
	if r.filter != nil && !e.passes(r.filter.Root(), r.l) {
		if answer != Filtered {
			t.Fatalf("%s\nfilter %s: answer %d\n%s", r.def, r.filter, answer, e.event(r.l))
		}
		return false
	}
	if answer != Recorded {
		t.Fatalf("%s\nfilter %s: answer %d\n%s", r.def, r.filter, answer, e.event(r.l))
	}
	_, got, _ := strings.Cut(string(r.l.AppendArgs(nil, rec)), ")")
	if want := e.event(r.l); got != want {
		t.Fatalf("%s:\n got %s\nwant %s", r.def, got, want)
	}
	pid, comm := h.task()
	switch {
	case rec.Regs != nil && *rec.Regs != *h.regs:
		t.Fatalf("%s: registers %+v, want %+v", r.def, rec.Regs, h.regs)
	case rec.IRQsOff != (h.regs.RFLAGS&(1<<9) == 0) || rec.CPL != h.cpl || rec.PID != pid || rec.Comm != comm || rec.Addr != text:
		t.Fatalf("%s: header %+v", r.def, rec)
	case r.def.Kind == event.KindReturn && (uint64(rec.Ret) != h.regs.RIP || rec.Duration != now-entered):
		t.Fatalf("%s: %+v", r.def, rec)
	}
	return true
}

func differential(t *testing.T, seed uint64, rounds int) (passed, filtered int) {
	r := rand.New(rand.NewPCG(seed, 3))
	mem := randomMemory(r)
	for range rounds {
		d := randomDef(r)
		l, err := event.Compile(d, scope, event.Options{Tasks: true, Regs: r.IntN(3) == 0})
		if err != nil {
			t.Fatal(err)
		}
		filter := ""
		if r.IntN(2) == 0 {
			filter = randomFilter(r, l, 3)
		}
		rig := newRig(t, l, filter)
		_, _, err = bpf.Compile(rig.prog, bpf.Layout{Fixups: true, Task: &bpf.TaskProfile{}})
		if host := d.Kind == event.KindWatch && d.Access != 4 || len(l.StackArgs()) > 0; err != nil && !host {
			t.Fatalf("%s filter %q: %v", d, filter, err)
		}
		for range 6 {
			h := &hit{mem: mem, regs: randomRegs(r), entry: randomRegs(r), cpl: uint8(3 * r.IntN(2)), old: r.Uint64(), new: r.Uint64(), write: r.IntN(2) == 0}
			switch {
			case rig.check(t, h):
				if filter != "" {
					passed++
				}
			default:
				filtered++
			}
		}
	}
	return passed, filtered
}

// TestDifferential wants of programs for random definitions, filters, registers
// and memory what the naive evaluator says.
func TestDifferential(t *testing.T) {
	passed, filtered := 0, 0
	for seed := range uint64(60) {
		n, m := differential(t, seed, 40)
		passed, filtered = passed+n, filtered+m
	}
	if passed < filtered/3 || filtered < passed/3 {
		t.Errorf("%d hits passed their filters, %d did not: the test says little", passed, filtered)
	}
}

func FuzzDifferential(f *testing.F) {
	f.Add(uint64(1))
	f.Add(uint64(1 << 40))
	f.Fuzz(func(t *testing.T, seed uint64) { differential(t, seed, 4) })
}

// TestAnswers wants of every hit one answer, and its record with it: filtered, stored,
// lost, or, with the gate closed, unwanted.
func TestAnswers(t *testing.T) {
	for _, def := range []string{"p:e vfs_read a=%di", "p:e vfs_read a=%di s=+0(%si):string"} {
		r := newRig(t, compile(t, def, event.Options{}), "a > 10")
		h := &hit{mem: randomMemory(rand.New(rand.NewPCG(1, 1))), regs: &probe.Regs{RSI: uint64(mapped)}}
		got := map[uint64]int{}
		run := func(n int, di uint64) {
			h.regs.RDI = di
			for range n {
				answer, err := r.vm.Run(h.context(r.ctx, r.def.Kind), h)
				if err != nil {
					t.Fatal(err)
				}
				got[answer]++
			}
		}
		run(3, 10)
		run(20000, 11)
		r.open(t, Closed)
		run(5, 11)
		run(5, 1)
		stored := 0
		r.maps.Ring.Drain(func(bpf.Record) bool { stored++; return true })
		if stored == 0 || got[Recorded] != stored || got[Lost] != 20000-stored || got[Lost] == 0 || got[Filtered] != 8 || got[Unwanted] != 5 {
			t.Errorf("%s: %d records, answers %v", def, stored, got)
		}
	}
}

func BenchmarkInterpreter(b *testing.B) {
	for _, bm := range []struct{ name, def, filter string }{
		{"filter and six registers", "p:e vfs_read a=%di b=%si c=%dx d=%cx e=%r8 f=%r9", "a > 10 && b != 0"},
		{"three registers", "p:e vfs_read a=%di b=%si:u32 c=%dx:s32", ""},
		{"two registers and text", "p:e vfs_read fd=%di:s32 buf=%si name=+0(%r8):string", ""},
	} {
		b.Run(bm.name, func(b *testing.B) {
			r := newRig(b, compile(b, bm.def, event.Options{}), bm.filter)
			h := &hit{mem: memory{}, regs: &probe.Regs{RDI: 11, RSI: 1, R8: uint64(mapped)}}
			h.mem.set(mapped, []byte("a-file-name.txt\x00"))
			ctx := h.context(r.ctx, r.def.Kind)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if _, err := r.vm.Run(ctx, h); err != nil {
					b.Fatal(err)
				}
				if n++; n%256 == 0 {
					r.maps.Ring.Drain(func(bpf.Record) bool { return true })
				}
			}
		})
	}
}
