package cli

import (
	"slices"
	"testing"
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
