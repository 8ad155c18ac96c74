package cli

import (
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestFileTypeText: types of files' parameters, as bpftrace prints them.
func TestFileTypeText(t *testing.T) {
	for typ, want := range map[string]string{
		"int": "int", "int *": "int*", "struct Foo *": "struct Foo*", "const char **": "const char**", "char *const": "char* const",
		"void *const *": "void* const*", "char (*)[4]": "char (*)[4]", "void (*)(int *)": "void (*)(int *)", "unsigned long int": "unsigned long int",
	} {
		if got := fileTypeText(typ); got != want {
			t.Errorf("%s: %q, want %q", typ, got, want)
		}
	}
}

// TestSplitPlaces: a list of patterns has commas, except in quotes and brackets.
func TestSplitPlaces(t *testing.T) {
	for list, want := range map[string][]string{
		"": {""}, "a": {"a"}, "a,b , c": {"a", "b", "c"}, `usdt:/bin/x:"p,q",k`: {`usdt:/bin/x:"p,q"`, "k"}, "k[,x]*,y": {"k[,x]*", "y"}, "a,": {"a"}, ",a": {"a"},
	} {
		if got := splitPlaces(list); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}

// TestPlacesText: places with their parameters, and types: names once, definitions with their modules and an empty line after each.
func TestPlacesText(t *testing.T) {
	l := api.PlaceList{
		Places: []api.Place{{Probe: "kretprobe:vfs_read", Prototype: &api.Prototype{Params: []api.Parameter{{Name: "fd", Type: "int"}}, Returns: "long int"}}},
		Types:  []api.TypeInfo{{Name: "struct a", Module: "vmlinux"}, {Name: "struct a", Module: "mod"}, {Name: "struct b", Module: "mod", Definition: "struct b {\n\tint x;\n};\n"}},
	}
	if got, want := placesText(l), "kretprobe:vfs_read\n    int fd\n    long int retval\nstruct a\nmod: struct b {\n\tint x;\n};\n\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
