package http

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// debugTarget is a guest with one function in a file, which has the parameters of vfs_read.
type debugTarget struct {
	script.Target
	known *types.Info
}

func (d debugTarget) Func(name string) (*types.FuncProto, string) {
	if name != "/bin/app:work" {
		return nil, "not known"
	}
	return d.known.Func("", "vfs_read"), ""
}

// TestFilePrototype: the list of places has the parameters of functions in files, if types are requested.
func TestFilePrototype(t *testing.T) {
	spec, err := types.Read(kerneltest.Types(), nil)
	if err != nil {
		t.Fatal(err)
	}
	d := debugTarget{known: types.New(spec, nil)}
	if p := filePrototype(d, d.known, "/bin/app:work"); p == nil || len(p.Params) != 4 || p.Params[2].Name != "count" {
		t.Errorf("%+v", p)
	}
	if p := filePrototype(d, d.known, "/bin/app:other"); p != nil {
		t.Errorf("a function that is not known: %+v", p)
	}
	if p := filePrototype(d, nil, "/bin/app:work"); p != nil {
		t.Errorf("without types: %+v", p)
	}
}

// TestListTypes: struct, union and enum in place of a provider list the guest's types, by names or patterns.
func TestListTypes(t *testing.T) {
	spec, err := types.Read(kerneltest.Types(), nil)
	if err != nil {
		t.Fatal(err)
	}
	h := serveFake(t, nil)
	h.g.types = types.New(spec, nil)
	list := func(query string) (l api.PlaceList) {
		t.Helper()
		status, body := h.rawRequest("GET", "/v1/places?match="+query, "")
		if err := json.Unmarshal([]byte(body), &l); err != nil || status != http.StatusOK || l.Places == nil || len(l.Places) > 0 {
			t.Fatalf("%s: status %d, %s, %v", query, status, body, err)
		}
		return l
	}
	if got := list("struct+qs*").Types; len(got) != 1 || got[0] != (api.TypeInfo{Name: "struct qstr", Module: "vmlinux"}) {
		t.Errorf("names of structures: %+v", got)
	}
	if got := list("enum++kind&types=true").Types; len(got) != 1 || got[0].Name != "enum kind" || !strings.HasPrefix(got[0].Definition, "enum kind {\n\t") {
		t.Errorf("the definition of an enumeration: %+v", got)
	}
	if got := list("struct+*&types=true").Types; len(got) < 5 || !slices.IsSortedFunc(got, func(a, b api.TypeInfo) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("all structures: %+v", got)
	}
	if got := list("union+qstr").Types; len(got) > 0 {
		t.Errorf("a structure as union: %+v", got)
	}
	if status, body := h.rawRequest("GET", "/v1/places?match=struct+%5Ba", ""); status != http.StatusBadRequest || !strings.Contains(body, "is not closed") {
		t.Errorf("a pattern that is none: status %d, %s", status, body)
	}
	h.g.types = nil
	if status, body := h.rawRequest("GET", "/v1/places?match=struct+qstr", ""); status != http.StatusNotImplemented || !strings.Contains(body, "the guest's types are not known") {
		t.Errorf("without types: status %d, %s", status, body)
	}
}

// modularTypes are types of which a module defines one as the kernel, one of the same name otherwise, and one of its own.
type modularTypes struct{ event.Types }

func (modularTypes) TypesNamed(module string, tag types.Tag, match func(string) bool) (all []types.Type) {
	for _, s := range map[string][]btf.Struct{"": {{Name: "both"}, {Name: "other", Size: 8}}, "mod": {{Name: "both"}, {Name: "other"}, {Name: "own"}}, "nod": {{Name: "own"}}}[module] {
		if tag == types.TagStruct && match(s.Name) {
			all = append(all, &s)
		}
	}
	return all
}

// TestModuleTypes: a definition that the kernel has, too, is listed once, one of several modules for each; names are listed once.
func TestModuleTypes(t *testing.T) {
	for definitions, want := range map[bool]string{false: "struct both of vmlinux; struct other of vmlinux; struct own of mod; ",
		true: "struct both of vmlinux; struct other of vmlinux; struct other of mod; struct own of mod; struct own of nod; "} {
		got := ""
		all, err := moduleTypes(modularTypes{}, []string{"", "mod", "nod"}, types.TagStruct, "*", definitions)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range all {
			got += x.Name + " of " + x.Module + "; "
		}
		if got != want {
			t.Errorf("definitions %t: %s, want %s", definitions, got, want)
		}
	}
}

// TestCheckPlaces: a check answers with the places of a script's probes if these are requested, each once, with patterns expanded.
func TestCheckPlaces(t *testing.T) {
	h := serveFake(t, nil)
	req := api.Check{Script: &api.RunScript{Script: `kprobe:vfs_re*, kprobe:vfs_write { } kprobe:vfs_read { } interval:s:1 { } END { }`}, Places: true}
	checked, err := h.c.Check(h.ctx, req)
	got := ""
	for _, p := range checked.Places {
		got += p.Probe + " "
	}
	if err != nil || got != "kprobe:vfs_read kprobe:vfs_write interval:s:1 " {
		t.Errorf("%s, %v", got, err)
	}
	req.Places = false
	if checked, err = h.c.Check(h.ctx, req); err != nil || checked.Places != nil {
		t.Errorf("without a request for them: %v, %v", checked.Places, err)
	}
}

// TestListFentry: fentry and fexit are listed with the module of each function, and without user code; kprobe lists that, too.
func TestListFentry(t *testing.T) {
	h := serveFake(t, nil)
	for pattern, want := range map[string]string{
		"fentry:vfs_read":          "fentry:vmlinux:vfs_read ",
		"f:vmlinux:vfs_*":          "fentry:vmlinux:vfs_read fentry:vmlinux:vfs_write ",
		"fexit:*:vfs_read":         "fexit:vmlinux:vfs_read ",
		"fentry:other:vfs_*":       "",
		"fentry:user_hot":          "",
		"kprobe:user_hot":          "kprobe:user_hot ",
		"vfs_read":                 "kprobe:vfs_read fentry:vmlinux:vfs_read ",
		"k*probe:vmlinux:vfs_read": "kprobe:vfs_read kretprobe:vfs_read ",
	} {
		l, err := h.c.Places(h.ctx, pattern, false)
		got := ""
		for _, p := range l.Places {
			got += p.Probe + " "
		}
		if err != nil || got != want {
			t.Errorf("%s: %s, want %s; %v", pattern, got, want, err)
		}
		for _, p := range l.Places {
			if _, err := h.c.Check(h.ctx, api.Check{Script: &api.RunScript{Script: p.Probe + " { }"}}); err != nil {
				t.Errorf("a script with %s: %v", p.Probe, err)
			}
		}
	}
}
