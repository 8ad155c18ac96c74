package evbpf

import (
	"fmt"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// readDef is what a user typically writes: a number, a pointer, a string.
const readDef = "p:myread vfs_read fd=%di:s32 buf=%si name=+0(%r8):string"

// record hits a definition once and returns the decoded record.
func record(t *testing.T, l *event.Layout, h *hit) *event.Record {
	t.Helper()
	if h.regs.RIP == 0 {
		h.regs.RIP = uint64(text) + 1
	}
	answer, rec := newRig(t, l, "").run(t, h)
	if answer != Recorded {
		t.Fatalf("%s: answer %d", l.Def(), answer)
	}
	return rec
}

// TestLine compares lines of a trace with lines that Linux printed, except for data
// that depends on the guest.
func TestLine(t *testing.T) {
	tests := []struct {
		name, def string
		opt       event.Options
		want      string
	}{
		{"all kinds of value", `p:argtypes vfs_read a=%ax b=%di:u8 c=%di:char d=%ip:symbol e=%r9:u32 f=+0(%si):x8[4] g=%r9:s32 h=%di:b4@4/8 s=+0(%r8):string sym=%ip:symstr bad=+0(%cx):string n=+8(%si):s16 lit=\"x" neg=\-1:s8`, event.Options{},
			`-0 true (vfs_read+0x0/0x370) a=0xffff8880051ed400 b=84 c='T' d=vfs_read+0x1/0x370 e=4294892774 f={0x0,0x1,0x80,0xff} g=-74522 h=5 s="a-file-name.txt" sym="vfs_read+0x1/0x370" bad=(fault) n=-2 lit="x" neg=-1`},
		{"return", `r:myret vfs_read arg=$arg1 $retval`, event.Options{Tasks: true},
			"task3-1 true (ksys_read+0x6f/0xf0 <- vfs_read) arg=0x54 arg2=-131391553612800"},
		{"no arguments", "p vfs_read", event.Options{},
			"-0 true (vfs_read+0x0/0x370)"},
		{"no task", "p vfs_read $comm", event.Options{Tasks: true},
			"-0 true (vfs_read+0x0/0x370) arg1=(fault)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := &hit{mem: memory{}, regs: &probe.Regs{RAX: 0xffff8880051ed400, RDI: 0x54, RSI: 0x7000, R8: 0x5000, R9: 4294892774, R15: 1<<40 | 2}}
			h.mem.set(0x5000, []byte("a-file-name.txt\x00"))
			h.mem.set(0x7000, []byte{0, 1, 0x80, 0xff, 0, 0, 0, 0, 0xfe, 0xff})
			h.entry = h.regs
			switch tt.name {
			case "return":
				r := *h.regs
				r.RIP, r.RDI = uint64(text)+0x500+0x6f, 0
				h.regs = &r
			case "no task":
				h.regs.R15 = 0
			}
			l := compile(t, tt.def, tt.opt)
			r := record(t, l, h)
			if got := fmt.Sprintf("%s-%d %v %s", r.Comm, r.PID, r.IRQsOff, l.AppendArgs(nil, r)); got != tt.want || r.HasTask != strings.HasPrefix(got, "task") {
				t.Errorf(" got %s, task %v\nwant %s", got, r.HasTask, tt.want)
			}
		})
	}
}

// TestPost wants a record of the stage post with registers and no arguments.
func TestPost(t *testing.T) {
	l := compile(t, readDef, event.Options{Regs: true, Tasks: true})
	h := &hit{mem: memory{}, regs: &probe.Regs{RDI: 3, R15: 3}}
	r := record(t, l.Post(), h)
	if r.Moment != event.AtPost || *r.Regs != *h.regs || r.Values != nil || r.Comm != "task3" || r.Addr != text {
		t.Errorf("got %+v", r)
	}
}

// TestLongTexts wants strings cut at 4096 bytes with their NUL, and at what a
// record has room for.
func TestLongTexts(t *testing.T) {
	h := &hit{mem: memory{}, regs: &probe.Regs{RDI: uint64(mapped)}}
	h.mem.set(mapped, []byte(strings.Repeat("x", 3*page)))
	def := "p vfs_read one=+0(%di):string"
	for i := range 20 {
		def += fmt.Sprintf(" s%d=+%d(%%di):string", i, i)
	}
	l := compile(t, def+` last=\"abc"`, event.Options{})
	total := 0
	for i, v := range record(t, l, h).Values {
		d := v.Data[0]
		switch {
		case d.Fault:
			t.Errorf("%s: fault", v.Name)
		case i < 15 && (len(d.Text) != event.MaxText-1 || !d.Cut):
			t.Errorf("%s: %d bytes, cut %v; want 4095, cut", v.Name, len(d.Text), d.Cut)
		case i > 16 && (d.Text != "" || !d.Cut):
			t.Errorf("%s: %q, cut %v; want nothing, cut", v.Name, d.Text, d.Cut)
		}
		total += len(d.Text) + 1
	}
	if want := l.MaxBytes - l.Dynamic; total != want || l.MaxBytes != 65535 {
		t.Errorf("texts take %d bytes, want all %d of %d", total, want, l.MaxBytes)
	}
}

// TestTextAtPageEnd wants a string that ends with its page, before one that is
// not mapped, and a fault for one that does not.
func TestTextAtPageEnd(t *testing.T) {
	h := &hit{mem: memory{}, regs: &probe.Regs{}}
	h.mem.set(mapped, []byte(strings.Repeat("y", page-1)+"\x00"))
	h.mem.set(mapped+2*page, []byte(strings.Repeat("z", page)))
	for _, tt := range []struct {
		at   guest.GVA
		want string
		cut  bool
	}{
		{mapped + page - 1, `""`, false},
		{mapped + page - 2, `"y"`, false},
		{mapped + page - 300, `"` + strings.Repeat("y", 299) + `"`, false},
		{mapped, `"` + strings.Repeat("y", page-1) + `"`, false},
		{mapped + 2*page, `"` + strings.Repeat("z", page-1) + `"`, true}, // the next page does not matter
		{mapped + 2*page + 1, "(fault)", false},
		{mapped + 3*page - 1, "(fault)", false},
		{mapped + page, "(fault)", false},
	} {
		h.regs.RDI = uint64(tt.at)
		v := record(t, compile(t, "p vfs_read s=+0(%di):string", event.Options{}), h).Values[0]
		if got := string(v.AppendText(nil)); got != tt.want || v.Data[0].Cut != tt.cut {
			t.Errorf("at %v: got %.40s, cut %v, want %.40s", tt.at, got, v.Data[0].Cut, tt.want)
		}
	}
}

// TestArraysAtPageEnd wants all elements before a page that is not mapped.
func TestArraysAtPageEnd(t *testing.T) {
	h := &hit{mem: memory{}, regs: &probe.Regs{}}
	h.mem.set(mapped, []byte(strings.Repeat("\x01", page)))
	l := compile(t, "p vfs_read a=+0(%di):u16[4]", event.Options{})
	for missing, want := range []string{"{257,257,257,257}", "{257,257,257,(fault)}", "{257,257,(fault),(fault)}", "{257,(fault),(fault),(fault)}", "{(fault),(fault),(fault),(fault)}"} {
		h.regs.RDI = uint64(mapped) + page - 8 + 2*uint64(missing)
		if got := string(record(t, l, h).Values[0].AppendText(nil)); got != want {
			t.Errorf("%d elements are not there: %s, want %s", missing, got, want)
		}
	}
}

// TestRights wants memory to be read with the rights of the probed code.
func TestRights(t *testing.T) {
	h := &hit{mem: memory{}, regs: &probe.Regs{RDI: uint64(data)}}
	h.mem.set(data, []byte("kernel\x00\x00"))
	l := compile(t, "p vfs_read n=+0(%di):u8 s=+0(%di):string p=+0(+0(%di)) @_sdata:char", event.Options{})
	for cpl, want := range map[uint8]string{
		0: `(vfs_read+0x0/0x370) n=107 s="kernel" p=(fault) arg4='k'`,
		3: `(vfs_read+0x0/0x370) n=(fault) s=(fault) p=(fault) arg4=(fault)`,
	} {
		h.cpl = cpl
		if got := string(l.AppendArgs(nil, record(t, l, h))); got != want {
			t.Errorf("CPL%d: %s, want %s", cpl, got, want)
		}
	}
}
