package http

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestVariables is about the route of variables: those of a place, of a function and of inlined functions, and the codes of places that are
// none. TestVariablesOfSource of probe/session has definitions with them.
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
}
