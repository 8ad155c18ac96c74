package event

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// mapped are two adjacent pages of test memory; what is around them faults.
const mapped guest.GVA = 0x10000

// randomFetch writes a fetch expression that suits a memory of small numbers.
func randomFetch(r *rand.Rand, depth int, ret bool) string {
	pick := func(s ...string) string { return s[r.IntN(len(s))] }
	if depth > 0 && r.IntN(3) > 0 {
		off := fmt.Sprintf("%d", r.IntN(64))
		if r.IntN(8) == 0 {
			off = fmt.Sprintf("0x%x", r.IntN(5000))
		}
		return pick("+", "-", "+u", "-u", "+", "+") + off + "(" + randomFetch(r, depth-1, ret) + ")"
	}
	leaves := []string{
		"%" + regNames[r.IntN(int(numRegs))], "%di", "%si", "$stack", fmt.Sprintf("$stack%d", r.IntN(600)),
		fmt.Sprintf("$arg%d", 1+r.IntN(9)), fmt.Sprintf(`\%d`, r.Int64()), fmt.Sprintf(`\-%d`, r.IntN(1000)),
		fmt.Sprintf("@0x%x", int(mapped)-64+r.IntN(2*pageSize+128)), "@_sdata", fmt.Sprintf("@_sdata+%d", r.IntN(256)), "@jiffies-8",
	}
	if ret {
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
		t += fmt.Sprintf("[%d]", 1+r.IntN(9))
	}
	return t
}

// randomDef returns a definition that parses.
func randomDef(r *rand.Rand) *Def {
	for {
		kind := "p"
		if r.IntN(2) == 0 {
			kind = "r"
		}
		text := kind + ":e vfs_read"
		for range 1 + r.IntN(4) {
			var arg string
			switch r.IntN(12) {
			case 0:
				arg = "$comm"
			case 1:
				arg = `\"literal"`
			default:
				if arg = randomFetch(r, 3, kind == "r"); r.IntN(5) > 0 {
					arg += ":" + randomType(r)
				}
			}
			text += " " + arg
		}
		// Not every type goes with every expression; try again.
		if d, err := ParseIn(text, kernel); err == nil {
			return d
		}
	}
}

// randomMemory fills the test pages with pointers into themselves, small
// numbers and short texts.
func randomMemory(r *rand.Rand, t *fakeTarget) {
	b := make([]byte, 2*pageSize)
	for i := 0; i < len(b); i += 8 {
		switch v := uint64(r.IntN(256)); r.IntN(4) {
		case 0:
			le.PutUint64(b[i:], uint64(mapped)-32+uint64(r.IntN(2*pageSize+64)))
		case 1:
			le.PutUint64(b[i:], v)
		case 2:
			copy(b[i:], "textual"[r.IntN(7):])
		case 3:
			le.PutUint64(b[i:], r.Uint64()&0x7f7f7f7f7f7f7f7f)
		}
	}
	t.set(mapped, b)
	t.set(addrSdata, b[:pageSize])
}

func randomRegs(r *rand.Rand) *probe.Regs {
	in := func() uint64 {
		if r.IntN(10) == 0 {
			return r.Uint64()
		}
		return uint64(mapped) + uint64(r.IntN(2*pageSize))
	}
	return &probe.Regs{
		RAX: in(), RBX: in(), RCX: in(), RDX: in(), RSI: in(), RDI: in(), RSP: in(), RBP: in(), R8: in(), R9: in(), R10: in(),
		R11: in(), R12: in(), R13: in(), R14: uint64(addrRead) + 3, R15: r.Uint64(), RFLAGS: 2 | uint64(r.IntN(2))<<9,
	}
}

// check captures d on c and compares with the naive evaluator.
func check(t *testing.T, m *machine, c *probe.Context, d *Def, entryRegs *probe.Regs) {
	f, err := Compile(d, kernel, Options{Profile: idle{}, Regs: len(d.Args)%2 == 0})
	if err != nil {
		t.Fatalf("%s: %v", d, err)
	}
	buf := make([]byte, f.BufSize())
	for i := range buf {
		buf[i] = 0xa5 // what an earlier hit left there
	}
	e := naive{mem: m.fakeTarget, regs: c.Regs, entry: c.Regs, comm: "swapper"}
	n := 0
	if d.Kind == KindReturn {
		e.entry = entryRegs
		data := make([]byte, f.EntrySize())
		at := *c
		at.Regs = entryRegs
		f.CaptureEntry(&at, data)
		n = f.CaptureReturn(c, data, buf)
	} else {
		n = f.Capture(c, buf)
	}
	rec, err := f.Decode(buf[:n])
	if err != nil {
		t.Fatalf("%s: %v", d, err)
	}
	text := string(f.AppendArgs(nil, rec))
	_, got, _ := strings.Cut(text, ")")
	if want := e.event(d); got != want {
		t.Fatalf("%s:\n got %s\nwant %s", d, got, want)
	}
	if rec.Regs != nil && *rec.Regs != *c.Regs || (rec.Regs != nil) != (len(d.Args)%2 == 0) {
		t.Fatalf("%s: registers %+v, want %+v", d, rec.Regs, c.Regs)
	}
	if rec.IRQsOff != (c.Regs.RFLAGS&insn.FlagIF == 0) || rec.PID != 1 || rec.Comm != "swapper" {
		t.Fatalf("%s: header %+v", d, rec)
	}
}

func differential(t *testing.T, seed uint64, rounds int) {
	r := rand.New(rand.NewPCG(seed, 2))
	m := newMachine(t, 1)
	randomMemory(r, m.fakeTarget)
	m.handle(t, func(c *probe.Context) {
		for range rounds {
			check(t, m, c, randomDef(r), randomRegs(r))
		}
	})
	m.hit(0, randomRegs(r))
}

// TestCaptureDifferential compares captures of random definitions on random
// memory with the naive evaluator.
func TestCaptureDifferential(t *testing.T) {
	for seed := range uint64(100) {
		differential(t, seed, 50)
	}
}

func FuzzCapture(f *testing.F) {
	f.Add(uint64(1))
	f.Add(uint64(1 << 40))
	f.Fuzz(func(t *testing.T, seed uint64) { differential(t, seed, 10) })
}

// TestLongTexts wants strings cut at 4096 bytes with their NUL, and at what a
// record has room for.
func TestLongTexts(t *testing.T) {
	m := newMachine(t, 1)
	m.set(mapped, []byte(strings.Repeat("x", 3*pageSize)))
	m.handle(t, func(c *probe.Context) {
		text := "p vfs_read one=+0(%di):string"
		for i := range 20 {
			text += fmt.Sprintf(" s%d=+%d(%%di):string", i, i)
		}
		f := compile(t, text+` last=\"abc"`, Options{})
		if f.BufSize() != maxRecord+8 {
			t.Errorf("BufSize %d, want %d", f.BufSize(), maxRecord+8)
		}
		buf := make([]byte, f.BufSize())
		rec, err := f.Decode(buf[:f.Capture(c, buf)])
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for i, v := range rec.Values {
			d := v.Data[0]
			switch {
			case d.Fault:
				t.Errorf("%s: fault", v.Name)
			case i < 15 && (len(d.Text) != maxString-1 || !d.Cut):
				t.Errorf("%s: %d bytes, cut %v; want 4095, cut", v.Name, len(d.Text), d.Cut)
			case i > 16 && (d.Text != "" || !d.Cut):
				t.Errorf("%s: %q, cut %v; want nothing, cut", v.Name, d.Text, d.Cut)
			}
			total += len(d.Text) + 1
		}
		if want := maxRecord - f.dynamic; total != want {
			t.Errorf("texts take %d bytes, want all %d", total, want)
		}
	})
	m.hit(0, &probe.Regs{RDI: uint64(mapped)})
}

// TestTextAtPageEnd wants a string that ends with its page, before one that is
// not mapped, and a fault for one that does not.
func TestTextAtPageEnd(t *testing.T) {
	m := newMachine(t, 1)
	m.set(mapped, []byte(strings.Repeat("y", pageSize-1)+"\x00"))
	m.set(mapped+2*pageSize, []byte(strings.Repeat("z", pageSize)))
	for _, tt := range []struct {
		at   guest.GVA
		want string
	}{
		{mapped + pageSize - 1, `""`},
		{mapped + pageSize - 2, `"y"`},
		{mapped + pageSize - 300, `"` + strings.Repeat("y", 299) + `"`},
		{mapped, `"` + strings.Repeat("y", pageSize-1) + `"`},
		{mapped + 2*pageSize, `"` + strings.Repeat("z", pageSize-1) + `"`}, // cut, so the next page does not matter
		{mapped + 2*pageSize + 2, "(fault)"},
		{mapped + 3*pageSize - 1, "(fault)"},
		{mapped + pageSize, "(fault)"},
	} {
		m.probe = &probe.Kprobe{Symbol: "vfs_read"}
		m.engine, _ = probe.New(m.fakeTarget, probe.Options{})
		m.handle(t, func(c *probe.Context) {
			f := compile(t, "p vfs_read s=+0(%di):string", Options{})
			buf := make([]byte, f.BufSize())
			rec, err := f.Decode(buf[:f.Capture(c, buf)])
			if err != nil {
				t.Fatal(err)
			}
			if got := string(rec.Values[0].AppendText(nil)); got != tt.want {
				t.Errorf("at %v: got %.40s, want %.40s", tt.at, got, tt.want)
			}
		})
		m.hit(0, &probe.Regs{RDI: uint64(tt.at)})
		if err := m.engine.Unregister(m.probe); err != nil {
			t.Fatal(err)
		}
	}
}
