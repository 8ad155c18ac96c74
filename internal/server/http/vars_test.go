package http

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestVariables lists variables, fetches them by name, and says why others cannot be had.
func TestVariables(t *testing.T) {
	h := serveFake(t, nil)
	list, err := h.c.Variables(h.ctx, "fs.c:71")
	if err != nil || len(list.Places) != 1 || list.More {
		t.Fatal(list, err)
	}
	p := list.Places[0]
	want := []api.Variable{
		{Name: "fd", Type: "int", Function: "vfs_read", Parameter: true, Where: "%di+3"}, // sub $3,%edi is behind
		{Name: "buf", Type: "char *", Function: "vfs_read", Parameter: true, Where: "%si"},
		{Name: "count", Type: "u64", Function: "vfs_read", Parameter: true, Where: "%dx"},
		{Name: "pos", Type: "u64", Function: "vfs_read", Parameter: true, Where: "%cx"},
		{Name: "f", Type: "const struct file *", Function: "vfs_read", Why: "optimized out at this place"},
		{Name: "flags", Type: "u64", Function: "vfs_read", Why: "optimized out at this place"},
	}
	if !strings.HasPrefix(p.Symbol, "vfs_read+0x") || p.Source != "src/kernel/fs.c:71" || !reflect.DeepEqual(p.Variables, want) {
		t.Errorf("got  %+v\nwant %+v", p, want)
	}
	if list, err = h.c.Variables(h.ctx, p.Symbol); err != nil || len(list.Places) != 1 || !reflect.DeepEqual(list.Places[0], p) {
		t.Errorf("%s: %+v, %v", p.Symbol, list, err)
	}
	if list, err = h.c.Variables(h.ctx, "inline:irq_restore"); err != nil || len(list.Places) < 5 {
		t.Errorf("%+v, %v", list, err)
	}
	for _, p := range list.Places {
		if v := p.Variables[0]; v.Name != "flags" || v.Function != "irq_restore" {
			t.Errorf("%s: %+v", p.Symbol, p.Variables)
		}
	}
	for at, code := range map[string]api.Code{"": "bad_value", "fs.c:1000000": "symbol_not_found", "inline:nothing": "symbol_not_found", "nothing": "symbol_not_found"} {
		_, err := h.c.Variables(h.ctx, at)
		var wire *api.Error
		if !errors.As(err, &wire) || wire.Code != code {
			t.Errorf("%q: %v, want %s", at, err, code)
		}
	}

	s, err := h.c.Events(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{
		{Def: `p:v fs.c:71 fd buf:string low=count:u8 pos vfs_bytes_read total=vfs_bytes_read:x64`},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	next[api.Start](h, s, api.RecordStart)
	sym, err := h.g.img.Lookup("vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.g.At(fakeStack, 64)
	if err != nil {
		t.Fatal(err)
	}
	copy(b, "text")
	if !h.g.hit(t, 0, "vfs_read", uint64(p.Addr)-uint64(sym.Addr), func(r *probe.Regs) {
		r.RDI, r.RSI, r.RDX, r.RCX = 0xffffffff_fffffff0, uint64(fakeStack), 0x1ff, 7
	}) {
		t.Fatal("no probe is there")
	}
	x := next[api.Hit](h, s, api.RecordHit)
	if _, got, _ := strings.Cut(x.Text, ") "); got != `fd=-13 buf="text" low=255 pos=7 vfs_bytes_read=0 total=0x0` {
		t.Errorf("hit %s", x.Text)
	}

	for def, want := range map[string]string{
		"p fs.c:71 f":                         "f is optimized out at this place",
		"p fs.c:71 f->size":                   "f is optimized out at this place",
		"p fs.c:71 nothing":                   "no variable nothing: these are fd, buf, count, pos, f, flags",
		"p fs.c:71 count->x":                  "This is not a pointer to union/structure.",
		"p fs.c:71 buf.x":                     "the structure is not in memory",
		"p workload.c:47 seed":                "DW_OP_entry_value",
		"p vfs_read nothing":                  "no variable nothing: these are fd, buf, count, pos, f, flags",
		"p vfs_read+22 fd->":                  "This is not a pointer to union/structure.",
		"p vfs_read+22 count-x":               "Failed to parse single hyphen",
		"r vfs_read f":                        "parameters are fd, buf, count, pos",
		"w rw@user_hot_calls fd":              "there are parameters at a function's entry and return only",
		"p inline:irq_restore no=irq_restore": "no variable irq_restore: these are flags",
	} {
		_, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: def})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", def, err, want)
		}
	}
}
